"""What the API server was last seen to hold: fed by events, put right by lists.

Watches lose deletions (a gap, a relist), so every few minutes a list replaces what is here. The list is older than some
events that were seen before it: versions of objects decide, and deletions are remembered until a younger list.
Versions are compared as numbers, as the API server's own store counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Versioned(Protocol):
    """An object that knows which one of its name it is, and how new."""

    @property
    def key(self) -> Hashable:
        """What names it: its namespace and its name."""

    @property
    def version(self) -> int:
        """Its resourceVersion as a number."""


T = TypeVar("T", bound=Versioned)
Change = Callable[[T | None, T | None], None]
"""Called with an object before and after a change; None where there is none."""


def version_number(text: object) -> int:
    """Return a resourceVersion as a number; 0 where it is none, which is older than all."""
    return int(text) if isinstance(text, str) and text.isdecimal() else 0


@dataclass(frozen=True)
class _Gone:
    version: int


class Cache(Generic[T]):
    """Objects of one kind, by namespace and name."""

    def __init__(self, changed: Change[T] | None = None) -> None:
        self._objects: dict[Hashable, T] = {}
        self._gone: dict[Hashable, _Gone] = {}
        self._changed: Change[T] = changed or (lambda _old, _new: None)

    def get(self, key: Hashable) -> T | None:
        """Return an object, or None."""
        return self._objects.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def see(self, found: T) -> None:
        """Take an object that was seen: by an event, or as the answer to a write."""
        if self._is_news(found):
            self._put(found)

    def lose(self, found: T) -> None:
        """Take a deletion that was seen; `found` carries the version of the deletion."""
        known = self._objects.get(found.key)
        if known is not None and known.version > found.version:
            return  # a younger one of that name
        self._gone[found.key] = _Gone(found.version)
        self._drop(found.key)

    def replace(self, listed: Iterable[T], version: int) -> None:
        """Take a list as it was at `version`: what is not on it, and is not younger, is no more."""
        seen: set[Hashable] = set()
        for found in listed:
            seen.add(found.key)
            self.see(found)
        for key, known in tuple(self._objects.items()):
            if key not in seen and known.version <= version:
                self._drop(key)
        self._gone = {key: gone for key, gone in self._gone.items() if gone.version > version}

    def _is_news(self, found: T) -> bool:
        known, gone = self._objects.get(found.key), self._gone.get(found.key)
        if gone is not None and found.version <= gone.version:
            return False
        return known is None or found.version > known.version

    def _put(self, found: T) -> None:
        self._gone.pop(found.key, None)
        old = self._objects.get(found.key)
        self._objects[found.key] = found
        self._changed(old, found)

    def _drop(self, key: Hashable) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self._changed(old, None)
