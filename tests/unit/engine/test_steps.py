"""What the workers answer: JSON that is a RankState, never an exception, and vLLM's settings left as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_api.state import RankState, Weights
from ebbtide_runtime.engine import baseline, compat
from ebbtide_runtime.engine.rank import Rank
from ebbtide_runtime.engine.steps import Steps
from ebbtide_runtime.native import Page

from tests.support.engine_client import FlatMemory
from tests.support.members import write_member


class Model:
    """A model of two parameters."""

    def __init__(self) -> None:
        self.loads = {"a", "b"}

    def named_parameters(self) -> list[tuple[str, None]]:
        return [("a", None), ("b", None)]

    def load_weights(self, weights: Any) -> set[str]:
        return self.loads


class Worker(Steps):
    """As much of vLLM's worker as the steps need."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.memory = FlatMemory()
        self.ebbtide = Rank(rank, self.memory)
        self.ebbtide.loaded()
        self.ebbtide.kv_ready()
        self.model = Model()
        config = SimpleNamespace(model="/models/tiny", model_weights="s3://x", revision="main")
        self.vllm_config = SimpleNamespace(model_config=config)
        self.reloaded: list[str] = []
        self.moved = False

    def get_model(self) -> Any:
        return self.model

    def reload_weights(self, *, weights_path: str) -> None:
        # As vLLM does: the settings now name the new folder.
        self.vllm_config.model_config.model = weights_path
        self.vllm_config.model_config.revision = None
        self.reloaded.append(weights_path)
        self.model.load_weights([])

    def ebbtide_check_reload(self) -> None:
        if self.moved:
            raise RuntimeError("moved")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "model.safetensors").touch()
    return str(tmp_path)


def state(answer: dict[str, Any]) -> RankState:
    return RankState.model_validate(answer)


@pytest.mark.parametrize(
    "step",
    [
        lambda worker: worker.ebbtide_state(),
        lambda worker: worker.ebbtide_prepare(1),
        lambda worker: worker.ebbtide_park(),
        lambda worker: worker.ebbtide_reload("/nowhere", 1),
        lambda worker: worker.ebbtide_commit(9),
    ],
)
def test_every_step_answers_with_the_rank(step: Callable[[Worker], dict[str, Any]]) -> None:
    assert state(step(Worker(3))).rank == 3


def test_only_the_last_steps_own_failure_is_its_failure() -> None:
    worker = Worker()
    answer = worker.ebbtide_commit(9)
    assert answer["failure"].startswith("ValueError: version 9 is not loaded")
    answer = worker.ebbtide_park()
    assert (answer["failure"], answer["lastError"]) == ("", "a copy failed long ago")


def test_a_reload_is_vllms_own_and_pending(folder: str) -> None:
    worker = Worker()
    answer = state(worker.ebbtide_reload(folder, 4))
    assert (answer.weights, answer.pending_version, worker.reloaded) == (Weights.RESIDENT, 4, [folder])
    assert state(worker.ebbtide_commit(4)).version == 4


def test_vllm_forgets_the_hand_off_folder(folder: str) -> None:
    """A later bare reload would read a folder that may be gone."""
    worker = Worker()
    worker.ebbtide_reload(folder, 4)
    config = worker.vllm_config.model_config
    assert (config.model, config.model_weights, config.revision) == ("/models/tiny", "s3://x", "main")


def test_it_forgets_it_after_a_failure_too(folder: str) -> None:
    worker = Worker()
    worker.model.loads = {"a"}
    answer = worker.ebbtide_reload(folder, 4)
    assert answer["failure"] == "IncompleteLoadError: not loaded: b"
    assert state(answer).weights is Weights.PARTIAL
    assert worker.vllm_config.model_config.model == "/models/tiny"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "README"])
def test_only_safetensors_are_loaded(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    worker = Worker()
    answer = worker.ebbtide_reload(str(tmp_path), 4)
    assert "holds no safetensors" in answer["failure"]
    assert (worker.reloaded, state(answer).weights) == ([], Weights.RESIDENT)


def test_weights_that_moved_are_a_failure(folder: str) -> None:
    worker = Worker()
    worker.moved = True
    assert worker.ebbtide_reload(folder, 1)["failure"] == "RuntimeError: moved"


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_measures_while_all_wait(rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    order: list[str] = []
    path = write_member(tmp_path)
    Page.create(tmp_path / "memory/page").close()
    monkeypatch.setenv("EBBTIDE_MEMBER", str(path))
    monkeypatch.setattr(compat, "barrier", lambda: order.append("barrier"))
    monkeypatch.setattr(baseline, "record", lambda page: order.append("measured"))
    Worker(rank).ebbtide_baseline()
    assert order == (["barrier", "measured", "barrier"] if rank == 0 else ["barrier", "barrier"])
