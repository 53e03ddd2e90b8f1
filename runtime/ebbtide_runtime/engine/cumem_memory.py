"""The CUDA device: vLLM's own `cumem` sleep backend does the work, this only speaks our words to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ebbtide_api.state import ParkedCopy

MIB = 1 << 20


class Backend(Protocol):
    """The steps of vLLM's worker that this needs."""

    def sleep(self, level: int) -> None:
        """Free weights and KV; level 1 keeps the weights in pinned host memory."""

    def wake_up(self, tags: Sequence[str]) -> None:
        """Map the tags again."""

    def discard(self, tags: tuple[str, ...]) -> None:
        """Free the tags alone."""


class CumemMemory:
    """One rank's memory (`rank.Memory`). A level 1 sleep copies the weights each time: cumem parks nothing ahead."""

    def __init__(self, backend: Backend, allocations: Callable[[], Sequence[Any]]) -> None:
        """`allocations` are cumem's records, each with `tag`, `handle` and `is_asleep`."""
        self._backend = backend
        self._allocations = allocations
        self._parked_version: int | None = None
        self._version = 0

    def prepare(self, version: int) -> int:
        """Return the bytes that the sleep will copy."""
        self._version = version
        return self._bytes("weights")

    def release_weights(self, keep_copy: bool) -> None:
        """Give the weights' memory back, and what is left of the rest."""
        self._backend.sleep(1 if keep_copy else 2)
        self._parked_version = self._version if keep_copy else None

    def restore_weights(self, from_copy: bool) -> None:
        """Take the memory again; vLLM fills it from its copy, if there is one."""
        self._backend.wake_up(["weights"])
        self._parked_version = None

    def release_kv(self) -> None:
        """Give the KV cache's memory back."""
        self._backend.discard(("kv_cache",))

    def restore_kv(self) -> None:
        """Take it again, empty."""
        self._backend.wake_up(["kv_cache"])

    def start_parking(self, version: int) -> None:
        """Nothing to do ahead of time."""

    def forget_copy(self) -> None:
        """Nothing is kept while the weights are resident."""

    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of weights, of KV, and of both that are resident now."""
        resident = sum(each.handle[1] for each in self._allocations() if not each.is_asleep)
        return self._bytes("weights"), self._bytes("kv_cache"), resident

    def parked(self) -> tuple[ParkedCopy | None, bool, str]:
        """Return the copy while asleep."""
        if self._parked_version is None:
            return None, False, ""
        return ParkedCopy(version=self._parked_version, mib=self._bytes("weights") / MIB, valid=True), False, ""

    def _bytes(self, tag: str) -> int:
        return sum(each.handle[1] for each in self._allocations() if each.tag == tag)
