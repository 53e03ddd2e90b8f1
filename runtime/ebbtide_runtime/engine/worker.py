"""vLLM's CPU worker with its weights and KV in the native arena. Given to vLLM by `--worker-cls`."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from . import compat, member
from .arena_memory import ArenaMemory, MisplacedError
from .rank import WEIGHTS_TAG, Rank
from .steps import Steps


class EbbtideCPUWorker(Steps, CPUWorker):  # type: ignore[misc]
    """One rank on the CPU. vLLM's own sleep and wake-up calls end here, so vLLM always knows that it sleeps."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        compat.adapt()
        super().__init__(*args, **kwargs)
        ranks = self.parallel_config.world_size
        self.memory = ArenaMemory(member.current().park_dir, self.rank, ranks, compat.arena_bytes(self.vllm_config))
        self.ebbtide = Rank(self.rank, self.memory)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[object]:
        return self.memory.context(tag)

    def load_model(self, **kwargs: Any) -> None:
        """Load the checkpoint into the arena. Raises MisplacedError when some of it ended elsewhere."""
        self.ebbtide_baseline()
        super().load_model(**kwargs)
        gc.collect()
        model = self.get_model()
        if hidden := compat.unreachable_weights(model.named_modules()):
            raise MisplacedError(f"packed away by vLLM, so no sleep would free them: {', '.join(hidden[:8])}")
        self.memory.seal(model)
        self.ebbtide.loaded()

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the KV cache, in the arena."""
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

    def ebbtide_load_context(self) -> AbstractContextManager[object]:
        """Return the arena: what a reload frees there goes back to the kernel, malloc would keep it."""
        return self.memory.context(WEIGHTS_TAG)

    def ebbtide_check_reload(self) -> None:
        """Raise MisplacedError unless the tensors are still where they were."""
        gc.collect()
        self.memory.check_unmoved()
