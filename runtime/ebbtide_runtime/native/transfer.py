"""Checksums and copies of bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_ssize_t, c_uint32, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .library import RangeStruct, library

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _BufferStruct(ctypes.Structure):
    """CPython's `Py_buffer`."""

    _fields_ = (
        ("buf", c_void_p),
        ("obj", ctypes.py_object),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    )


@contextmanager
def _bytes_of(data: Buffer) -> Iterator[tuple[int | None, int]]:
    # The address and length of any contiguous buffer, read-only ones too, which ctypes' from_buffer refuses.
    view = _BufferStruct()
    simple = 0
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(view), simple)
    try:
        yield view.buf, view.len
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


@dataclass(frozen=True)
class Range:
    """Bytes of a file."""

    offset: int
    length: int


def crc32c(data: Buffer, seed: int = 0) -> int:
    """Return the CRC32C of a contiguous buffer, carried on from `seed`. Raises BufferError for other buffers."""
    crc = c_uint32()
    with _bytes_of(data) as (address, length):
        library().call("ebb_crc32c", address, length, seed, ctypes.byref(crc))
    return crc.value


def crc32c_is_hardware() -> bool:
    """Whether this processor's own instruction is used: tens of GB/s, not two."""
    return bool(library().raw.ebb_crc32c_is_hardware())


def ingest(src_fd: int, dst_fd: int, ranges: Sequence[Range], threads: int = 2) -> list[int]:
    """Copy ranges to the same places of another file; return the CRC32C of the bytes written, one a range.

    Safe against a source that changes meanwhile. Raises TRUNCATED (the source does not have them), NO_MEMORY (no room
    at the destination), IO, INVALID_ARGUMENT.
    """
    wanted = (RangeStruct * len(ranges))(*[RangeStruct(each.offset, each.length) for each in ranges])
    crcs = (c_uint32 * len(ranges))()
    library().call("ebb_ingest", src_fd, dst_fd, wanted, len(ranges), threads, crcs)
    return list(crcs)


def copy(dst_addr: int, src_addr: int, n: int, threads: int) -> None:
    """Copy memory with stores that leave the caches alone; the ranges must not overlap. For benches."""
    library().call("ebb_copy", dst_addr, src_addr, n, threads)
