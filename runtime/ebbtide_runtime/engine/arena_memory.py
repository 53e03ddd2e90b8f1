"""The CPU device: weights and KV in the native arena, parked in a file of the member's memory folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from ebbtide_api.state import ParkedCopy

from ..native import Arena, Tag, crc32c
from ..native.heap import trim
from . import storage
from .parking import Contents, Parking
from .storage import ArenaMode, Blocks, Placed, Region

_TAGS = {"weights": Tag.WEIGHTS, "kv_cache": Tag.KV}
_THREADS = 2
_CRC = 2**32 - 1


class MisplacedError(RuntimeError):
    """Weights are not where the arena can release, park and restore them."""


class ArenaMemory:
    """One rank's memory. Implements `rank.Memory`."""

    def __init__(self, park_dir: str, rank: int, ranks: int, reserve: int) -> None:
        """`reserve` is the address space per tag in bytes; it costs no memory."""
        os.makedirs(park_dir, exist_ok=True)
        self._arena = Arena(reserve)
        self._blocks = {tag: Blocks(self._arena, tag) for tag in Tag}
        self._parking = Parking(park_dir, rank, ranks, self._arena, _THREADS)
        self._named: Callable[[], list[tuple[str, torch.Tensor]]] = list
        self._placed: list[Placed] = []
        self._layout = 0
        self._kept: list[Region] = []
        self._saved: list[np.ndarray] = []

    def context(self, tag: str) -> AbstractContextManager[object]:
        """Return what vLLM allocates a tag in: the arena for weights and KV, nothing special for the rest."""
        return ArenaMode(self._blocks[_TAGS[tag]]) if tag in _TAGS else nullcontext()

    def seal(self, model: torch.nn.Module) -> None:
        """Take note of the loaded model. Raises MisplacedError when any of its bytes are outside the arena."""
        self._named = lambda: _named(model)
        named = self._named()
        if lost := storage.outside(named, self._blocks[Tag.WEIGHTS]):
            raise MisplacedError(f"outside the arena: {', '.join(lost[:8])}{' ...' if len(lost) > 8 else ''}")
        self._placed = storage.place(named)
        self._layout = storage.layout_digest(self._placed, self._arena.base(Tag.WEIGHTS))
        # A checkpoint holds parameters; rotary tables, scales and the like must outlive a level 2 sleep.
        self._kept = storage.unshared(self._blocks[Tag.WEIGHTS], model.parameters())

    def check_unmoved(self) -> None:
        """Raise MisplacedError unless every tensor still lies where it lay when the model was loaded."""
        if moved := set(storage.place(self._named())) ^ set(self._placed):
            names = sorted({each.name for each in moved})
            raise MisplacedError(f"moved by the load: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")

    def prepare(self, version: int) -> int:
        """Make sure that a copy of the weights exists, and return the bytes that had to be copied for it."""
        return self._parking.ensure(self._contents(version))

    def release_weights(self, keep_copy: bool) -> None:
        """Give the weights' memory back; without a copy, keep what no checkpoint holds."""
        if not keep_copy:
            self._saved = [storage.view(region).copy() for region in self._kept]
            self._parking.drop()
        self._arena.release(Tag.WEIGHTS)
        # The activations of finished requests are no weights, but they are the trainer's memory now.
        trim()

    def restore_weights(self, from_copy: bool) -> None:
        """Take the memory again, filled from the copy, or empty but for what no checkpoint holds."""
        if from_copy:
            self._parking.restore()
            return
        self._arena.restore(Tag.WEIGHTS)
        for region, saved in zip(self._kept, self._saved, strict=True):
            storage.view(region)[:] = saved
        self._saved = []

    def release_kv(self) -> None:
        """Give the KV cache's memory back."""
        self._arena.release(Tag.KV)

    def restore_kv(self) -> None:
        """Take it again, zero, and every page of it now: `resident` is then true, and nobody else can have it."""
        self._arena.restore(Tag.KV, threads=_THREADS, prefault=True)

    def start_parking(self, version: int) -> None:
        """Begin the copy, beside serving."""
        self._parking.start(self._contents(version))

    def _contents(self, version: int) -> Contents:
        # Parameters change by a load alone. The rest may change while serving, and makes an earlier copy stale.
        digest = self._layout
        for region in self._kept:
            digest = (digest & ~_CRC) | crc32c(storage.view(region).data, digest & _CRC)
        return Contents(version, digest)

    def forget_copy(self) -> None:
        """The weights change: the copy is void."""
        self._parking.drop()

    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of weights, of KV, and of both that are resident now."""
        weights, kv = self._arena.stats(Tag.WEIGHTS), self._arena.stats(Tag.KV)
        return weights.live, kv.live, weights.resident + kv.resident

    def parked(self) -> tuple[ParkedCopy | None, bool, str]:
        """Return the copy, whether one is being made, and why the last one failed."""
        return self._parking.state(), self._parking.running, self._parking.error


def _named(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
