"""Memory whose addresses outlive its pages: release gives the pages back, restore makes the addresses usable again."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

from .library import ArenaStatsStruct, Handle, library


class Tag(IntEnum):
    """The regions of an arena."""

    WEIGHTS = 0
    KV = 1


@dataclass(frozen=True)
class ArenaStats:
    """Bytes: `span` ends the highest live block, `resident` is what the kernel holds in memory."""

    reserved: int
    span: int
    live: int
    resident: int
    released: bool
    blocks: int


class Arena:
    """One process's arena. Tensors may point into it for as long as the process lives, so only `close` ends it.

    Between release and restore any touch of a tag's memory ends the process (SIGSEGV): it would take memory that
    someone else owns. A forked child does not have the memory at all.
    """

    def __init__(self, reserve_bytes_per_tag: int) -> None:
        """Take address space, not memory. Raises INVALID_ARGUMENT, NO_MEMORY."""
        self._handle = Handle("ebb_arena_destroy", library().make("ebb_arena_create", None, reserve_bytes_per_tag))

    @property
    def handle(self) -> int:
        """The native pointer, for the other bindings."""
        return self._handle.value

    def allocate(self, tag: Tag, size: int, align: int = 64) -> int:
        """Return the address of `size` zeroed or reused bytes. Raises FULL, RELEASED, BUSY (while being filled)."""
        return library().make("ebb_arena_allocate", self.handle, tag, size, align)

    def free(self, address: int) -> None:
        """Free a block, also while released. Raises INVALID_ARGUMENT for anything else."""
        library().call("ebb_arena_free", self.handle, address)

    def release(self, tag: Tag) -> None:
        """Give all memory of the tag back; again is fine. Raises BUSY while a copy from or to it runs."""
        library().call("ebb_arena_release", self.handle, tag)

    def restore(self, tag: Tag, threads: int = 2, prefault: bool = False) -> None:
        """Make the tag usable, reading as zero; `prefault` takes the pages up to the span now. Raises BUSY."""
        library().call("ebb_arena_restore", self.handle, tag, threads, int(prefault))

    def stats(self, tag: Tag) -> ArenaStats:
        """Measure the tag now."""
        found = ArenaStatsStruct()
        library().call("ebb_arena_get_stats", self.handle, tag, ctypes.byref(found))
        return ArenaStats(found.reserved, found.span, found.live, found.resident, bool(found.released), found.blocks)

    def base(self, tag: Tag) -> int:
        """Return the tag's first address; it never changes."""
        return library().make("ebb_arena_base", self.handle, tag)

    def close(self) -> None:
        """Unmap everything: nothing may point into the arena any more."""
        self._handle.close()
