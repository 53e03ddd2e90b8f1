"""Bringing a server's children to what they should be: server-side apply, only of what differs, never of another's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ebbtide_api.server import InferenceServer

from .cache import Cache
from .children import Problem, Site, children
from .kinds import BY_NAME, SETS, Api, ApiError, Kind
from .names import DIGEST, Json
from .objects import Child, read_child, text

log = logging.getLogger("ebbtide.apply")
MANAGER: Final = "ebbtide/server"
ChildKey = tuple[str, str, str]


@dataclass(frozen=True)
class Foreign:
    """A child's name is taken by somebody else: perhaps by an earlier server of that name, on its way out."""

    kind: str
    name: str


Find = Callable[[ChildKey], Child | None]


def to_apply(made: tuple[Json, ...], find: Find, marks: Mapping[ChildKey, str], *, held: bool) -> list[Json]:
    """Return the children that are not as they should be. `held`: what is there stays as it is.

    Marks tell how a child's spec stood when we last applied it: it moves when somebody else edits it.
    """
    wanted = []
    for child in made:
        known = find(key_of(child))
        edited = known is not None and marks.get(known.key, known.mark) != known.mark
        if known is None or (not held and (edited or known.digest != _digest(child))):
            wanted.append(child)
    return wanted


def foreign(made: tuple[Json, ...], uid: str, find: Find) -> Foreign | None:
    """Return the first child whose name belongs to somebody else."""
    for child in made:
        known = find(key_of(child))
        if known is not None and known.owner != uid:
            return Foreign(known.kind, known.name)
    return None


def key_of(child: Mapping[str, object]) -> ChildKey:
    """Return what names a child."""
    return text(child, "metadata", "namespace"), text(child, "kind"), text(child, "metadata", "name")


def _digest(child: Mapping[str, object]) -> str:
    return text(child, "metadata", "annotations", DIGEST)


@dataclass(frozen=True)
class Applied:
    """How it went. `seen` is what the API server said is there, `gone` what it said is not: for the inventory."""

    problem: Problem | None
    seen: tuple[Child, ...] = ()
    gone: tuple[Child, ...] = ()


class Applier:
    """Applies the children of servers. `inventory` is what is known to be there; `marks` is how we left it."""

    def __init__(self, api: Api, site: Site, inventory: Cache[Child]) -> None:
        self._api, self._site, self.inventory = api, site, inventory
        self._marks: dict[ChildKey, str] = {}

    async def apply(self, server: InferenceServer, *, held: bool = False) -> Applied:
        """Apply what differs. Raises ApiError. A problem means that nothing was applied."""
        # The thread reads the inventory and never writes it: those who hear of its changes live in the loop.
        applied = await asyncio.to_thread(self._apply, server, held)
        for child in applied.gone:
            self.inventory.lose(child)
        for child in applied.seen:
            self.inventory.see(child)
        return applied

    def _apply(self, server: InferenceServer, held: bool) -> Applied:
        made, uid = children(server, self._site), server.metadata.uid
        known = {key_of(child): self.inventory.get(key_of(child)) for child in made}
        now = {key: child if _owned(child, uid) else self._look(key) for key, child in known.items()}
        gone = tuple(child for key, child in known.items() if child is not None and now[key] is None)
        seen = tuple(child for key, child in now.items() if child is not None and child is not known[key])
        if taken := foreign(made, uid, now.get):
            return Applied(_taken(taken), seen, gone)
        wanted = to_apply(made, now.get, self._marks, held=held)
        if refusal := self._try(wanted):
            return Applied(refusal, seen, gone)
        return Applied(None, (*seen, *(self._apply_one(child) for child in wanted)), gone)

    def _look(self, key: ChildKey) -> Child | None:
        """Ask for what we know nothing of, or know as another's.

        An object without our labels is on no list of ours; one of an earlier server may be gone by now.
        """
        namespace, kind, name = key
        try:
            return read_child(self._api.get(BY_NAME[kind], namespace, name), kind)
        except ApiError as error:
            if error.missing:
                return None
            raise

    def _try(self, wanted: list[Json]) -> Problem | None:
        """Ask the API server first: a template that it refuses must leave everything as it was."""
        sets = [child for child in wanted if text(child, "kind") == SETS.kind]
        try:
            for child in sets:
                self._api.apply(SETS, child, MANAGER, dry_run=True)
        except ApiError as error:
            if error.refused:
                return Problem("TemplateRefused", f"The API server refuses the StatefulSet: {error.message[:1000]}")
            raise
        return None

    def _apply_one(self, child: Json) -> Child:
        kind = kind_of(child)
        made = read_child(self._api.apply(kind, child, MANAGER), kind.kind)
        log.info("applied %s %s/%s", kind.kind, made.namespace, made.name)
        self._marks[made.key] = made.mark
        return made


def _owned(child: Child | None, uid: str) -> bool:
    return child is not None and child.owner == uid


def kind_of(child: Mapping[str, object]) -> Kind:
    """Return the kind of a child."""
    return BY_NAME[text(child, "kind")]


def _taken(taken: Foreign) -> Problem:
    return Problem(
        "NameTaken",
        f"{taken.kind} {taken.name} is there and not this server's. If it was an earlier server's it goes by itself;"
        " else rename it or the server.",
    )
