"""Bringing a server's children to what they should be: server-side apply, only of what differs, never of another's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """How it went. `seen` are the children as the API server said that they are: for the inventory."""

    problem: Problem | None
    seen: tuple[Child, ...] = ()


class Applier:
    """Applies the children of servers. `inventory` is what is known to be there; `marks` is how we left it."""

    def __init__(self, api: Api, site: Site, inventory: Cache[Child]) -> None:
        self._api, self._site, self.inventory = api, site, inventory
        self._marks: dict[ChildKey, str] = {}

    async def apply(self, server: InferenceServer, *, held: bool = False) -> Applied:
        """Apply what differs. Raises ApiError. A problem means that nothing was applied."""
        # The thread reads the inventory and never writes it: those who hear of its changes live in the loop.
        applied = await asyncio.to_thread(self._apply, server, held)
        for child in applied.seen:
            self.inventory.see(child)
        return applied

    def _apply(self, server: InferenceServer, held: bool) -> Applied:
        made = children(server, self._site)
        found = {child.key: child for child in self._look_for(made)}

        def find(key: ChildKey) -> Child | None:
            return self.inventory.get(key) or found.get(key)

        if taken := foreign(made, server.metadata.uid, find):
            return Applied(_taken(taken))
        wanted = to_apply(made, find, self._marks, held=held)
        if refusal := self._try(wanted):
            return Applied(refusal)
        return Applied(None, (*found.values(), *(self._apply_one(child) for child in wanted)))

    def _look_for(self, made: Iterable[Json]) -> Iterator[Child]:
        """Ask for what we know nothing of: an object without our labels is on no list of ours, and not ours to take."""
        for child in made:
            kind, (namespace, _, name) = kind_of(child), key_of(child)
            if self.inventory.get(key_of(child)) is not None:
                continue
            try:
                yield read_child(self._api.get(kind, namespace, name), kind.kind)
            except ApiError as error:
                if not error.missing:
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


def kind_of(child: Mapping[str, object]) -> Kind:
    """Return the kind of a child."""
    return BY_NAME[text(child, "kind")]


def _taken(taken: Foreign) -> Problem:
    return Problem(
        "NameTaken",
        f"{taken.kind} {taken.name} is there and not this server's. If it was an earlier server's it goes by itself;"
        " else rename it or the server.",
    )
