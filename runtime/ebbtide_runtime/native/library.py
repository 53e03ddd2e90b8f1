"""Finds and loads libebbtide.so, and turns its statuses into exceptions. Nobody else touches ctypes' raw calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from .status import NativeError, Status

ABI_VERSION = 2


class ErrorStruct(ctypes.Structure):
    """`ebb_error`."""

    _fields_ = (("code", c_int32), ("message", ctypes.c_char * 256))


class ArenaStatsStruct(ctypes.Structure):
    """`ebb_arena_stats`."""

    _fields_ = (
        ("reserved", c_uint64),
        ("span", c_uint64),
        ("live", c_uint64),
        ("resident", c_uint64),
        ("released", c_uint32),
        ("blocks", c_uint32),
    )


class MeasurementStruct(ctypes.Structure):
    """`ebb_measurement`."""

    _fields_ = (
        ("answered", c_uint64),
        ("time_ns", c_uint64),
        ("used_bytes", c_uint64),
        ("host_bytes", c_uint64),
        ("processes", c_uint64),
    )


class ParkedInfoStruct(ctypes.Structure):
    """`ebb_parked_info`."""

    _fields_ = (
        ("version", c_uint64),
        ("layout", c_uint64),
        ("span", c_uint64),
        ("chunks", c_uint64),
        ("file_bytes", c_uint64),
    )


class RangeStruct(ctypes.Structure):
    """`ebb_range`."""

    _fields_ = (("offset", c_uint64), ("length", c_uint64))


OUT_HANDLE = POINTER(c_void_p)
OUT_U64 = POINTER(c_uint64)
OUT_U32 = POINTER(c_uint32)
OUT_I32 = POINTER(c_int32)

# Arguments of every call that ends with an ebb_error, which is left out here.
CHECKED: dict[str, tuple[type, ...]] = {
    "ebb_process_start": (c_int32, OUT_U64),
    "ebb_crc32c": (c_void_p, c_uint64, c_uint32, OUT_U32),
    "ebb_copy": (c_void_p, c_void_p, c_uint64, c_int32),
    "ebb_arena_create": (c_void_p, c_uint64, OUT_HANDLE),
    "ebb_arena_base": (c_void_p, c_int32, OUT_HANDLE),
    "ebb_arena_allocate": (c_void_p, c_int32, c_uint64, c_uint64, OUT_HANDLE),
    "ebb_arena_free": (c_void_p, c_void_p),
    "ebb_arena_release": (c_void_p, c_int32),
    "ebb_arena_restore": (c_void_p, c_int32, c_int32, c_int32),
    "ebb_arena_get_stats": (c_void_p, c_int32, POINTER(ArenaStatsStruct)),
    "ebb_parked_create": (
        c_char_p,
        c_void_p,
        c_int32,
        c_uint64,
        c_uint64,
        c_int32,
        c_int32,
        c_void_p,
        OUT_HANDLE,
    ),
    "ebb_parked_open": (c_char_p, OUT_HANDLE),
    "ebb_parked_get_info": (c_void_p, POINTER(ParkedInfoStruct)),
    "ebb_parked_verify": (c_void_p, c_uint64, c_int32),
    "ebb_parked_matches": (c_void_p, c_void_p, c_int32, c_int32, OUT_I32),
    "ebb_parked_restore": (c_void_p, c_void_p, c_int32, c_int32, c_int32),
    "ebb_ingest": (c_int32, c_int32, POINTER(RangeStruct), c_uint64, c_int32, OUT_U32),
    "ebb_page_create": (c_char_p, OUT_HANDLE),
    "ebb_page_open": (c_char_p, OUT_HANDLE),
    "ebb_page_get": (c_void_p, c_int32, OUT_U64),
    "ebb_page_set": (c_void_p, c_int32, c_uint64),
    "ebb_page_add": (c_void_p, c_int32, c_uint64, OUT_U64),
    "ebb_page_open_gate": (c_void_p,),
    "ebb_page_close_gate": (c_void_p,),
    "ebb_page_inflight": (c_void_p, OUT_U64),
    "ebb_page_publish": (c_void_p, POINTER(MeasurementStruct)),
    "ebb_page_measurement": (c_void_p, POINTER(MeasurementStruct)),
    "ebb_gate_register": (c_void_p, OUT_HANDLE),
    "ebb_gate_enter": (c_void_p, OUT_I32),
    "ebb_gate_leave": (c_void_p,),
}
CLOSING = ("ebb_arena_destroy", "ebb_parked_close", "ebb_page_close", "ebb_gate_close")


class Library:
    """The loaded library. `call` raises `NativeError`; calls release the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = _load(path)
        _check_abi(self.raw, path)
        for name, arguments in CHECKED.items():
            function = getattr(self.raw, name)
            function.argtypes = (*arguments, POINTER(ErrorStruct))
            function.restype = c_int32
        for name in CLOSING:
            function = getattr(self.raw, name)
            function.argtypes = (c_void_p,)
            function.restype = None

    def call(self, name: str, *arguments: object) -> None:
        """Call a checked function; its name decides its arguments."""
        error = ErrorStruct()
        status = getattr(self.raw, name)(*arguments, ctypes.byref(error))
        if status != 0:
            raise NativeError(_status(status), error.message.decode(errors="replace"))

    def make(self, name: str, *arguments: object) -> int:
        """Call a checked function whose last argument gives a handle or an address, and return that."""
        handle = c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle.value or 0

    def u64(self, name: str, *arguments: object) -> int:
        """Call a checked function whose last argument gives a number, and return that."""
        value = c_uint64()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value


class Handle:
    """Owns one native object, and closes it once. Used after that, it raises INVALID_STATE, not a crash."""

    def __init__(self, closer: str, value: int) -> None:
        self._close: Callable[[int], None] = getattr(library().raw, closer)
        self._value: int | None = value

    @property
    def value(self) -> int:
        """The pointer, as an integer."""
        if self._value is None:
            raise NativeError(Status.INVALID_STATE, "it was closed")
        return self._value

    def close(self) -> None:
        """Close it; again is fine."""
        value, self._value = self._value, None
        if value is not None:
            self._close(value)


def _status(number: int) -> Status:
    try:
        return Status(number)
    except ValueError:
        return Status.INTERNAL


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as problem:
        raise NativeError(
            Status.NOT_FOUND, f"{problem}; build it with scripts/build, or set EBBTIDE_LIBRARY"
        ) from problem


def _check_abi(raw: ctypes.CDLL, path: Path) -> None:
    raw.ebb_abi_version.restype = c_uint32
    found = raw.ebb_abi_version()
    if found != ABI_VERSION:
        raise NativeError(Status.WRONG_ABI, f"{path} has ABI {found}, these bindings have {ABI_VERSION}")


def library_path() -> Path:
    """Where the library is looked for: $EBBTIDE_LIBRARY, else beside this package."""
    return Path(os.environ.get("EBBTIDE_LIBRARY") or Path(__file__).with_name("libebbtide.so"))


@cache
def library() -> Library:
    """Load the library at first use. Raises `NativeError` NOT_FOUND or WRONG_ABI."""
    return Library(library_path())
