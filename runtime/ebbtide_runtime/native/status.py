"""The library's status codes, and the one exception that carries them."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """`ebb_status` of ebbtide.h, whose comments say what each means."""

    OK = 0
    INVALID_ARGUMENT = -1
    NO_MEMORY = -2
    IO = -3
    NOT_FOUND = -4
    EXISTS = -5
    FOREIGN = -6
    WRONG_ABI = -7
    TRUNCATED = -8
    CORRUPT = -9
    MISMATCH = -10
    CANCELLED = -11
    BUSY = -12
    RELEASED = -13
    FULL = -14
    INVALID_STATE = -15
    INTERNAL = -16


class NativeError(Exception):
    """A call into libebbtide failed: `status` for programs, `message` for people."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(f"{status.name}: {message}")
        self.status = status
        self.message = message
