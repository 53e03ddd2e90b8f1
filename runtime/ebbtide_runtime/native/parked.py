"""Parked weights: one checked copy of an arena's weights in a file, made once per version, read at every wake."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int32, c_uint32
from dataclasses import dataclass

from .arena import Arena, Tag
from .library import Handle, ParkedInfoStruct, library


class Cancel:
    """Stops a copy that another thread makes: `set` once, at any time."""

    def __init__(self) -> None:
        self._flag = c_uint32()

    def set(self) -> None:
        """Ask the copy to stop; it raises CANCELLED soon after."""
        self._flag.value = 1

    @property
    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._flag.value != 0

    @property
    def address(self) -> int:
        """Where the copy looks; this object must live as long as the copy."""
        return ctypes.addressof(self._flag)


@dataclass(frozen=True)
class ParkedInfo:
    """`span` bytes of memory in `chunks` of 4 MiB; the file takes `bytes`. `layout` is the maker's digest."""

    version: int
    span: int
    chunks: int
    layout: int
    bytes: int


class Parked:
    """An open copy. The file may be replaced or deleted meanwhile; this one stays readable until `close`."""

    def __init__(self, handle: int) -> None:
        """Used by `create` and `open`."""
        self._handle = Handle("ebb_parked_close", handle)
        found = ParkedInfoStruct()
        library().call("ebb_parked_get_info", handle, ctypes.byref(found))
        self.info = ParkedInfo(found.version, found.span, found.chunks, found.layout, found.file_bytes)

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        arena: Arena,
        tag: Tag,
        *,
        version: int,
        layout: int,
        threads: int = 1,
        nice: int = 10,
        cancel: Cancel | None = None,
    ) -> Parked:
        """Copy the tag's memory up to its span; the file appears, or replaces the old one, when it is whole.

        The memory must not change meanwhile. Raises NO_MEMORY (before anything is written, if it can be known),
        CANCELLED, RELEASED, BUSY, NOT_FOUND (the folder), IO; then there is no new file.
        """
        address = None if cancel is None else cancel.address
        handle = library().make(
            "ebb_parked_create", os.fsencode(path), arena.handle, tag, version, layout, threads, nice, address
        )
        return Parked(handle)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Parked:
        """Check all but the chunks. Raises NOT_FOUND, FOREIGN, WRONG_ABI, TRUNCATED, CORRUPT."""
        return Parked(library().make("ebb_parked_open", os.fsencode(path)))

    def verify(self, sample: int = 0, *, threads: int = 1) -> None:
        """Check `sample` chunks spread from a random start, or all for 0. Raises CORRUPT, TRUNCATED."""
        library().call("ebb_parked_verify", self._handle.value, sample, threads)

    def matches(self, arena: Arena, tag: Tag, *, threads: int = 1) -> bool:
        """Say whether the tag's memory has the same span and checksums. Raises RELEASED, BUSY."""
        same = c_int32()
        library().call("ebb_parked_matches", self._handle.value, arena.handle, tag, threads, ctypes.byref(same))
        return same.value == 1

    def restore(self, arena: Arena, tag: Tag, *, threads: int = 2, verify: bool = True) -> None:
        """Fill the tag's memory, released or not.

        Raises MISMATCH (another span) and BUSY with nothing changed; CORRUPT, TRUNCATED, IO, NO_MEMORY with the tag
        released: never half a copy.
        """
        library().call("ebb_parked_restore", self._handle.value, arena.handle, tag, threads, int(verify))

    def close(self) -> None:
        """Close the file; the memory it was restored to stays."""
        self._handle.close()
