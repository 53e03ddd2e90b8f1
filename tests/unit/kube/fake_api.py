"""An API server in memory: versions, UIDs, generations, preconditions, and what one manager needs of apply.

It lies about nothing. `fail` makes the next call of a verb fail; `calls` is what was asked, reads left out.
"""

import copy
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ebbtide_operator.kube.kinds import ApiError, Kind
from ebbtide_operator.kube.names import Json

Key = tuple[str, str, str]
Calls = list[tuple[str, str, str]]


@dataclass
class FakeApi:
    """See kinds.Api. `answers` are what creations of reviews and of tokens return, by kind or subresource."""

    objects: dict[Key, Any] = field(default_factory=dict)
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    answers: dict[str, Callable[[Json], Json]] = field(default_factory=dict)
    fail: dict[str, list[ApiError]] = field(default_factory=dict)
    _versions: Any = field(default_factory=lambda: itertools.count(101))
    _lock: Any = field(default_factory=threading.Lock)

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        self._may_fail("get")
        return copy.deepcopy(self._find(kind, namespace, name))

    def list(self, kind: Kind, namespace: str, labels: str = "", fields: str = "") -> tuple[Iterable[Json], str]:
        self._may_fail("list")
        name = fields.removeprefix("metadata.name=")
        wanted = dict(part.split("=") for part in labels.split(",") if "=" in part)
        there = {part for part in labels.split(",") if part and "=" not in part}
        found = [
            copy.deepcopy(one)
            for (plural, place, called), one in sorted(self.objects.items())
            if plural == kind.plural and namespace in ("", place) and self._matches(one, wanted, there)
            if name in ("", called)
        ]
        return found, str(next(self._versions))

    @staticmethod
    def _matches(one: Any, wanted: dict[str, str], there: set[str]) -> bool:
        labels = one["metadata"].get("labels", {})
        return wanted.items() <= labels.items() and there <= labels.keys()

    def create(self, kind: Kind, namespace: str, body: Json, name: str = "", subresource: str = "") -> Json:
        self._note("create", kind, name or str(body.get("metadata", {}).get("name", "")))  # type: ignore[attr-defined]
        if answer := self.answers.get(subresource or kind.plural):
            return answer(body)
        with self._lock:
            key = (kind.plural, namespace, str(self._meta(body)["name"]))
            if key in self.objects:
                raise ApiError(409, "AlreadyExists", f"{key} is there")
            return self._store(key, body, None)

    def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        self._note("replace", kind, name)
        with self._lock:
            old = self._find(kind, namespace, name)
            if self._meta(body).get("resourceVersion") != old["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            return self._store((kind.plural, namespace, name), body, old)

    def apply(self, kind: Kind, body: Json, manager: str, *, subresource: str = "", dry_run: bool = False) -> Json:
        meta = self._meta(body)
        self._note("dry-run" if dry_run else f"apply/{subresource}" if subresource else "apply", kind, meta["name"])
        with self._lock:
            key = (kind.plural, meta["namespace"], meta["name"])
            old = self.objects.get(key)
            if meta.get("uid") and (old is None or old["metadata"]["uid"] != meta["uid"]):
                raise ApiError(409, "Conflict", "uid mismatch")
            return copy.deepcopy(body) if dry_run else self._store(key, body, old)

    def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        self._note("delete", kind, name)
        with self._lock:
            meta = self._find(kind, namespace, name)["metadata"]
            if meta["uid"] != uid or (version and meta["resourceVersion"] != version):
                raise ApiError(409, "Conflict", "the precondition failed")
            del self.objects[kind.plural, namespace, name]

    # for tests

    def put(self, kind: Kind, body: Any) -> Any:
        """Write an object as somebody else would."""
        with self._lock:
            key = (kind.plural, body["metadata"]["namespace"], body["metadata"]["name"])
            return self._store(key, body, self.objects.get(key))

    def written(self, *verbs: str) -> Calls:
        """Return what was asked for since the last call of this."""
        found = [call for call in self.calls if not verbs or call[0] in verbs]
        self.calls.clear()
        return found

    def _store(self, key: Key, body: Json, old: Any) -> Json:
        made: Any = {**(old or {}), **copy.deepcopy(body)}
        before = old["metadata"] if old else {}
        changed = old is None or made.get("spec") != old.get("spec")
        made["metadata"] = {
            **before,
            **made["metadata"],
            "uid": before.get("uid") or made["metadata"].get("uid") or f"uid-{next(self._versions)}",
            "resourceVersion": before.get("resourceVersion", ""),
            "generation": before.get("generation", 0) + changed,
        }
        if made != old:
            made["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = made
        return copy.deepcopy(made)

    def _find(self, kind: Kind, namespace: str, name: str) -> Any:
        try:
            return self.objects[kind.plural, namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f"{kind.plural} {name}") from None

    @staticmethod
    def _meta(body: Json) -> Any:
        return body["metadata"]

    def _note(self, verb: str, kind: Kind, name: str) -> None:
        self.calls.append((verb, kind.plural, name))
        self._may_fail(verb)

    def _may_fail(self, verb: str) -> None:
        if self.fail.get(verb):
            raise self.fail[verb].pop(0)
