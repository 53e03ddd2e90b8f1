"""What waking costs: parked weights back into their arena, against the same bytes copied into fresh huge pages.

Both fault pages in: the arena's were given back by the sleep, the contender's were just mapped. So the ratio says what
our own work costs on top of what the kernel and the memory need. Checksums are on in `restore, checked`.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ebbtide_runtime.native import Arena, Parked, Tag, copy

from .report import Goal, Row, at_least, row

WORKLOAD = "wake"
SIZE = 256 * 2**20
THREADS = 2


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _fresh_copy(source: mmap.mmap) -> float:
    start = time.perf_counter()
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    copy(_address(memory), _address(source), SIZE, THREADS)
    return SIZE / (time.perf_counter() - start) / 1e9


def _restore(arena: Arena, parked: Parked, verify: bool) -> float:
    arena.release(Tag.WEIGHTS)
    start = time.perf_counter()
    parked.restore(arena, Tag.WEIGHTS, threads=THREADS, verify=verify)
    return SIZE / (time.perf_counter() - start) / 1e9


def run(rounds: int) -> tuple[list[Row], list[Goal]]:
    """Measure each contender once a round, in turn."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        arena = Arena(2 * SIZE)
        address = arena.allocate(Tag.WEIGHTS, SIZE)
        ctypes.memset(address, 7, SIZE)
        parked = Parked.create(Path(folder) / "parked", arena, Tag.WEIGHTS, version=0, layout=1)
        source = _like(address)
        contenders: dict[str, Callable[[], float]] = {
            "restore, checked": lambda: _restore(arena, parked, True),
            "restore, unchecked": lambda: _restore(arena, parked, False),
            "copy into fresh huge pages": lambda: _fresh_copy(source),
        }
        samples: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, measure in contenders.items():
                samples[name].append(measure())
        parked.close()
    return _summary(samples)


def _like(address: int) -> mmap.mmap:
    source = mmap.mmap(-1, SIZE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    copy(_address(source), address, SIZE, THREADS)
    return source


def _summary(samples: dict[str, list[float]]) -> tuple[list[Row], list[Goal]]:
    rows = [row(WORKLOAD, name, "rate", "GB/s", rates) for name, rates in samples.items()]
    checked, _, fresh = (each.median for each in rows)
    return rows, [at_least("wake, of the same copy into fresh huge pages", checked / fresh, 0.8)]
