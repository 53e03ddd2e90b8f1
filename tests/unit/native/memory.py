"""The process's memory as the kernel and ctypes see it, for the tests."""

import ctypes
import os
from pathlib import Path


def anonymous_bytes(pid: int | str = "self") -> int:
    """Pss_Anon of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Pss_Anon")


def write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def randomize(address: int, size: int) -> bytes:
    """Fill with random bytes and return them."""
    data = os.urandom(size)
    write(address, data)
    return data
