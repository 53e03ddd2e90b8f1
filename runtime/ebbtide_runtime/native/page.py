"""The control page: one mapped file that engine, launcher and agent share, with the admission gate on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_int32
from dataclasses import dataclass
from enum import IntEnum

from .library import Handle, MeasurementStruct, library
from .status import NativeError, Status


class Field(IntEnum):
    """The words of the page (`ebb_field`). ADMISSION is read-only here: the gate calls change it."""

    ADMISSION = 0
    PHASE = 1
    RETRY_AFTER_S = 2
    WEIGHT_VERSION = 3
    CACHE_EPOCH = 4
    EPOCH = 5
    BOOT = 6
    GRANT = 7
    KILL = 8
    LAUNCHER_PID = 9
    LAUNCHER_START = 10
    ENGINE_PID = 11
    ENGINE_START = 12
    ENGINE_EXITS = 13
    LAST_EXIT = 14
    BASELINE = 15
    MEASURE_REQUEST = 16
    LAUNCHER_BEAT = 17
    AGENT_BEAT = 18
    LAST_REQUEST = 19
    WAKES = 20
    KNOCK = 21
    HOLD_MS = 22


@dataclass(frozen=True)
class Measurement:
    """What the launcher measured: it answers every MEASURE_REQUEST up to `answered`. `time_ns`, when
    it began, is CLOCK_MONOTONIC."""

    answered: int
    time_ns: int
    used_bytes: int
    host_bytes: int
    processes: int


class Gate:
    """This process's slot. Made by `Page.register_gate`; a forked child needs its own."""

    def __init__(self, page: Page) -> None:
        """Take a slot. Raises FULL when 64 live processes have one."""
        self._page = page  # the page must outlive the gate
        self._handle = Handle("ebb_gate_close", library().make("ebb_gate_register", page.handle))
        self._enter: Callable[..., int] = library().raw.ebb_gate_enter
        self._leave: Callable[..., int] = library().raw.ebb_gate_leave

    def enter(self) -> bool:
        """Count a request in and return True, or return False when the gate is closed: then nothing is counted."""
        admitted = c_int32()
        _check(self._enter(self._handle.value, ctypes.byref(admitted), None))
        return admitted.value == 1

    def leave(self) -> None:
        """Count a request out. Raises INVALID_STATE when none is inside."""
        _check(self._leave(self._handle.value, None))

    def close(self) -> None:
        """Give the slot back, with all that is still counted in it."""
        self._handle.close()


def _check(status: int) -> None:
    # The gate is on every request's way: it does without the message, and so without its buffer.
    if status != 0:
        raise NativeError(Status(status), "the gate refused: nothing is inside, or this process has no slot")


def process_start(pid: int) -> int | None:
    """Return a live process's start time in clock ticks since boot; None when it is gone or a zombie."""
    try:
        return library().u64("ebb_process_start", pid)
    except NativeError as problem:
        if problem.status is Status.NOT_FOUND:
            return None
        raise


class Page:
    """An open control page. Every word is read and written whole, and all processes see one order of writes."""

    def __init__(self, handle: int) -> None:
        """Used by `create` and `open`."""
        self._handle = Handle("ebb_page_close", handle)

    @staticmethod
    def create(path: str | os.PathLike[str]) -> Page:
        """Make the file (mode 0600), all zero and the gate closed. Raises EXISTS, NOT_FOUND (its folder), IO."""
        return Page(library().make("ebb_page_create", os.fsencode(path)))

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Page:
        """Map the file. Raises NOT_FOUND, FOREIGN, WRONG_ABI, TRUNCATED."""
        return Page(library().make("ebb_page_open", os.fsencode(path)))

    @property
    def handle(self) -> int:
        """The native pointer, for the gate."""
        return self._handle.value

    def get(self, field: Field) -> int:
        """Read a word."""
        return library().u64("ebb_page_get", self.handle, field)

    def set(self, field: Field, value: int) -> None:
        """Write a word, modulo 2**64. Raises INVALID_ARGUMENT for ADMISSION."""
        library().call("ebb_page_set", self.handle, field, value)

    def add(self, field: Field, delta: int) -> int:
        """Add to a word, modulo 2**64, and return the new value. Raises INVALID_ARGUMENT for ADMISSION."""
        return library().u64("ebb_page_add", self.handle, field, delta)

    def open_gate(self) -> None:
        """Admit requests from now on."""
        library().call("ebb_page_open_gate", self.handle)

    def close_gate(self) -> None:
        """Admit none from now on. Once `inflight()` is 0 after this, no request is inside until `open_gate`."""
        library().call("ebb_page_close_gate", self.handle)

    @property
    def admission(self) -> bool:
        """Whether requests are admitted."""
        return self.get(Field.ADMISSION) == 1

    def inflight(self) -> int:
        """Count the requests inside, over all live API processes; slots of dead ones are reclaimed."""
        return library().u64("ebb_page_inflight", self.handle)

    def register_gate(self) -> Gate:
        """Take a gate slot for this process. Raises FULL."""
        return Gate(self)

    def publish(self, measurement: Measurement) -> None:
        """Publish a measurement. One process at a time may do this: the launcher."""
        found = MeasurementStruct(
            measurement.answered,
            measurement.time_ns,
            measurement.used_bytes,
            measurement.host_bytes,
            measurement.processes,
        )
        library().call("ebb_page_publish", self.handle, ctypes.byref(found))

    def measurement(self) -> Measurement | None:
        """Read the last measurement, whole, or None before the first."""
        found = MeasurementStruct()
        try:
            library().call("ebb_page_measurement", self.handle, ctypes.byref(found))
        except NativeError as problem:
            if problem.status is Status.NOT_FOUND:
                return None
            raise
        return Measurement(found.answered, found.time_ns, found.used_bytes, found.host_bytes, found.processes)

    def close(self) -> None:
        """Unmap the page; gates made from it must be closed before."""
        self._handle.close()
