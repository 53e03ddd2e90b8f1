"""What the control routes call in every worker, by `collective_rpc`. Answers are JSON; nothing raises."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..native import Page
from . import baseline, compat, member
from .rank import Rank


class Steps:
    """Mixed into vLLM's workers. `ebbtide` is the rank, made before the device is touched."""

    ebbtide: Rank
    rank: int
    reload_weights: Callable[..., None]
    get_model: Callable[[], Any]
    vllm_config: Any

    def ebbtide_state(self) -> dict[str, Any]:
        """Return the rank's state as JSON, with `failure`: why its last step failed, or nothing."""
        return {**self.ebbtide.state().wire(), "failure": self.ebbtide.error}

    def ebbtide_prepare(self, level: int) -> dict[str, Any]:
        """Have all that a sleep of this level needs, touching nothing."""
        self.ebbtide.prepare(level)
        return self.ebbtide_state()

    def ebbtide_park(self) -> dict[str, Any]:
        """Begin the parked copy, beside serving."""
        self.ebbtide.park()
        return self.ebbtide_state()

    def ebbtide_reload(self, path: str, version: int) -> dict[str, Any]:
        """Load a folder of safetensors in place, as the pending version."""
        self.ebbtide.reload(version, lambda: self._load_folder(path), lambda: _check_folder(path))
        return self.ebbtide_state()

    def ebbtide_commit(self, version: int) -> dict[str, Any]:
        """Make the pending version the rank's."""
        self.ebbtide.commit(version)
        return self.ebbtide_state()

    def ebbtide_baseline(self) -> None:
        """Measure the whole engine while no rank has begun to load. All ranks call this."""
        compat.barrier()
        if self.rank == 0:
            page = Page.open(member.current().page_path)
            baseline.record(page)
            page.close()
        compat.barrier()

    def ebbtide_load_context(self) -> AbstractContextManager[object]:
        """Return what a reload allocates its temporaries in."""
        return nullcontext()

    def ebbtide_check_reload(self) -> None:
        """Raise unless the tensors are still where they were."""

    def _load_folder(self, path: str) -> None:
        config = self.vllm_config.model_config
        before = (config.model, config.model_weights, config.revision)
        try:
            with compat.loads_completely(self.get_model()), self.ebbtide_load_context():
                self.reload_weights(weights_path=os.fspath(path))
        finally:
            # vLLM leaves the new path behind; a later bare reload would read a hand-off folder that may be gone.
            config.model, config.model_weights, config.revision = before
        self.ebbtide_check_reload()


def _check_folder(path: str) -> None:
    """Raise FileNotFoundError for a folder that vLLM could not load: found out halfway, it costs a restart."""
    if not any(Path(path).glob("*.safetensors")):
        raise FileNotFoundError(f"{path} holds no safetensors")
