"""vLLM's CUDA worker: its own `cumem` sleep backend, with our states and steps around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from . import compat
from .cumem_memory import CumemMemory
from .rank import Rank
from .steps import Steps


class EbbtideCUDAWorker(Steps, Worker):  # type: ignore[misc]
    """One rank on a CUDA device. Needs `--enable-sleep-mode`, which the launcher passes on CUDA only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        compat.adapt()
        super().__init__(*args, **kwargs)
        self.ebbtide = Rank(self.rank, CumemMemory(_Cumem(self), compat.cumem_allocations))

    def load_model(self, **kwargs: Any) -> None:
        """Load the checkpoint into cumem's pool."""
        self.ebbtide_baseline()
        super().load_model(**kwargs)
        self.ebbtide.loaded()

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the KV cache in cumem's pool."""
        super().initialize_from_config(kv_cache_config)
        self.ebbtide.kv_ready()

    def sleep(self, level: int = 1) -> None:
        """Give weights and KV back; never raises, `ebbtide_state` tells."""
        self.ebbtide.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Take the tags' memory again; never raises, `ebbtide_state` tells."""
        self.ebbtide.wake(tags)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Give the KV cache back alone; never raises, `ebbtide_state` tells."""
        self.ebbtide.discard(tags)


class _Cumem:
    """vLLM's own steps, past our overrides."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def sleep(self, level: int) -> None:
        Worker.sleep(self._worker, level)

    def wake_up(self, tags: Sequence[str]) -> None:
        Worker.wake_up(self._worker, list(tags))

    def discard(self, tags: tuple[str, ...]) -> None:
        Worker.discard(self._worker, tags)
