"""One rank's memory: what its weights and KV are, and the steps between. Knows neither vLLM nor torch.

Failures of a step are values (`last_error`), never exceptions: vLLM's executor reads no further replies after the
first rank that raised, and the next call would get the stale ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ebbtide_api.state import KV, ParkedCopy, RankState, Weights

MIB = 1 << 20
WEIGHTS_TAG = "weights"
KV_TAG = "kv_cache"
_RESTART = "an earlier load failed midway: the engine must restart"


class Memory(Protocol):
    """How a device's memory is given away and taken back. Every method may raise."""

    def prepare(self, version: int) -> int:
        """Make sure that a copy of the weights exists, and return the bytes that had to be copied for it."""

    def release_weights(self, keep_copy: bool) -> None:
        """Give the weights' memory back; without a copy, keep what no checkpoint holds."""

    def restore_weights(self, from_copy: bool) -> None:
        """Take the memory again, filled from the copy, or empty but for what no checkpoint holds."""

    def release_kv(self) -> None:
        """Give the KV cache's memory back."""

    def restore_kv(self) -> None:
        """Take it again, empty."""

    def start_parking(self, version: int) -> None:
        """Begin the copy, beside serving."""

    def forget_copy(self) -> None:
        """The weights change: the copy is void."""

    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of weights, of KV, and of both that are resident now."""

    def parked(self) -> tuple[ParkedCopy | None, bool, str]:
        """Return the copy, whether one is being made, and why the last one failed."""


class Rank:
    """The state of one rank, and its steps."""

    def __init__(self, rank: int, memory: Memory) -> None:
        self.rank = rank
        self.memory = memory
        self.weights = Weights.UNKNOWN
        self.kv = KV.UNKNOWN
        self.version = 0
        self.pending: int | None = None
        self.copied = 0
        self.error = ""
        self._mapped = True
        self._poisoned = False
        self._prepared = False

    def loaded(self) -> None:
        """The checkpoint was loaded, as version 0."""
        self.weights = Weights.RESIDENT

    def _loaded_version(self) -> int:
        return self.version if self.pending is None else self.pending

    def kv_ready(self) -> None:
        """The KV cache has memory."""
        self.kv = KV.RESIDENT

    def prepare(self, level: int) -> None:
        """Before a sleep: have all that the level needs. Nothing is touched, so this can fail without harm."""
        self.copied = 0
        self._attempt(self._prepare, level)

    def _prepare(self, level: int) -> None:
        self._prepared = False
        if level == 1 and self.weights is Weights.RESIDENT:
            self.copied = self.memory.prepare(self._loaded_version())
            self._prepared = True

    def sleep(self, level: int) -> None:
        """Give all memory back. Level 1 leaves the weights parked, level 2 discards them."""
        self._attempt(self._sleep, level)

    def _sleep(self, level: int) -> None:
        self._release_kv()
        if not self._mapped:
            return
        keep = level == 1 and self.weights is Weights.RESIDENT
        if keep and not self._prepared:
            self.copied = self.memory.prepare(self._loaded_version())
        self.memory.release_weights(keep)
        self._mapped = self._prepared = False
        if keep:
            self.weights = Weights.PARKED
        else:
            self.weights = Weights.DISCARDED
            self.pending = None

    def wake(self, tags: Sequence[str] | None) -> None:
        """Take memory back for the tags, or for all of it."""
        self._attempt(self._wake, tags or (WEIGHTS_TAG, KV_TAG))

    def _wake(self, tags: Sequence[str]) -> None:
        if WEIGHTS_TAG in tags and not self._mapped:
            self._restore_weights()
        if KV_TAG in tags and self.kv is KV.DISCARDED:
            self.kv = KV.UNKNOWN
            self.memory.restore_kv()
            self.kv = KV.RESIDENT

    def _restore_weights(self) -> None:
        if self.weights is Weights.PARTIAL:
            raise ValueError(_RESTART)
        parked = self.weights is Weights.PARKED
        # Half restored weights must never look like whole ones, and are never touched: they may have no memory.
        self.weights = Weights.PARTIAL
        self.memory.restore_weights(parked)
        self._mapped = True
        self.weights = Weights.RESIDENT if parked else Weights.DISCARDED

    def discard(self, tags: Sequence[str]) -> None:
        """Give the KV cache's memory back and keep the weights."""
        self._attempt(self._discard, tags)

    def _discard(self, tags: Sequence[str]) -> None:
        if set(tags) - {KV_TAG}:
            raise ValueError(f"only {KV_TAG} can be discarded alone, not {sorted(tags)}")
        self._release_kv()

    def _release_kv(self) -> None:
        if self.kv is KV.RESIDENT:
            self.memory.release_kv()
            self.kv = KV.DISCARDED

    def park(self) -> None:
        """Begin the parked copy, if the weights are whole and committed."""
        if self.weights is Weights.RESIDENT and self.pending is None:
            self._attempt(self.memory.start_parking, self.version)

    def reload(self, version: int, load: Callable[[], None], check: Callable[[], None] = lambda: None) -> None:
        """Load a version in place, if `check` does not raise.

        After a failed load the weights are `partial`, and only a restart mends them.
        """
        self._attempt(self._reload, version, load, check)

    def _reload(self, version: int, load: Callable[[], None], check: Callable[[], None]) -> None:
        if self._poisoned or self.weights is Weights.PARTIAL:
            raise ValueError(_RESTART)
        if not self._mapped:
            raise ValueError("the weights have no memory: wake them first")
        check()
        self._prepared = False
        self.memory.forget_copy()
        self.weights = Weights.PARTIAL
        self.pending = None
        self._poisoned = True
        load()
        self._poisoned = False
        self.weights = Weights.RESIDENT
        self.pending = version

    def commit(self, version: int) -> None:
        """Make the pending version the rank's version."""
        self._attempt(self._commit, version)

    def _commit(self, version: int) -> None:
        if self.pending is None and self.version == version:
            return
        if self.pending != version:
            raise ValueError(f"version {version} is not loaded: {self.pending} is pending")
        self.version, self.pending = version, None

    def _attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        self.error = ""
        try:
            step(*arguments)
        except Exception as problem:
            self.error = f"{type(problem).__name__}: {problem}"

    def state(self) -> RankState:
        """Report the rank, measured now."""
        weights, kv, resident = self.memory.sizes()
        copy, parking, failure = self.memory.parked()
        return RankState(
            rank=self.rank,
            pid=os.getpid(),
            weights=self.weights,
            kv=self.kv,
            version=self.version,
            pending_version=self.pending,
            weights_mib=weights / MIB,
            kv_mib=kv / MIB,
            resident_mib=resident / MIB,
            parked=copy,
            parking=parking,
            copied_bytes=self.copied,
            last_error=self.error or failure,
        )
