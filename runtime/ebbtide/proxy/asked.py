"""What a shim is asked and what it answers, whatever engine it pretends to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import DrainMode

TAGS = frozenset({"weights", "kv_cache"})
MODES = {"abort": DrainMode.ABORT, "wait": DrainMode.WAIT, "keep": DrainMode.KEEP}
Query = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Asked:
    """A call of a shim: its query, and its body where that is a JSON object."""

    path: str
    query: Query = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def one(self, name: str) -> str:
        """Return a parameter of the query, or an empty text."""
        values = self.query.get(name, ())
        return values[-1] if values else ""

    def flag(self, name: str, default: bool) -> bool:
        """Return a yes or no of the query or the body."""
        given = self.body.get(name, self.one(name))
        return default if given in ("", None) else str(given).lower() in ("1", "true", "yes", "on")

    def text(self, name: str) -> str:
        """Return a text of the body, or an empty one. Raises INVALID_REQUEST for anything else."""
        given = self.body.get(name)
        if given is not None and not isinstance(given, str | int):
            raise invalid(name, f"{given!r} is no text")
        return "" if given is None else str(given)


@dataclass(frozen=True)
class Answer:
    """An answer in the shape of the engine that was asked for."""

    body: Any
    status: int = 200


def invalid(field_: str, why: str) -> EbbtideError:
    """Return INVALID_REQUEST for one field."""
    return EbbtideError(ErrorCode.INVALID_REQUEST, f"{field_}: {why}.", field=field_)


def tags_of(given: object, known: Mapping[str, str]) -> frozenset[str]:
    """Return the tags that a client names, as ours; none named are all. Raises INVALID_TAG."""
    named = [given] if isinstance(given, str) else given or []
    if not isinstance(named, Sequence) or not all(isinstance(each, str) for each in named):
        raise invalid("tags", f"{given!r} is no list of texts")
    tags = {tag for each in named for tag in each.split(",")}
    if wrong := sorted(tags - set(known)):
        action = f"Use the tags {', '.join(sorted(known))}."
        raise EbbtideError(ErrorCode.INVALID_TAG, f"there is no tag {wrong[0]!r}.", next_action=action)
    return frozenset(known[tag] for tag in tags if known[tag]) if tags else TAGS


def mode_of(given: str, allowed: Sequence[str]) -> DrainMode | None:
    """Return how requests in flight end, None if nothing was said. Raises INVALID_MODE."""
    if not given:
        return None
    if given not in allowed:
        known = ", ".join(allowed)
        raise EbbtideError(
            ErrorCode.INVALID_MODE,
            f"mode {given!r} is none of {known}.",
            next_action=f"Use one of {known}.",
            modes=list(allowed),
        )
    return MODES[given]


Refuse = Callable[[Asked], Answer]


def refuse(what: str, action: str) -> EbbtideError:
    """Return the named 501 of what cannot be done truthfully."""
    return EbbtideError(ErrorCode.NOT_IMPLEMENTED, f"{what}.", next_action=action)
