"""The CPU device with a model of torch's in it: what sleeps, what comes back, what is refused."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ebbtide_api.state import KV, Weights
from ebbtide_runtime.engine.arena_memory import ArenaMemory, MisplacedError
from ebbtide_runtime.engine.rank import Rank
from ebbtide_runtime.measure import pss_anon

MIB = 1 << 20


class Model(torch.nn.Module):
    """Three parameters of 4 MiB, one of them tied, a buffer, and a tensor that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(1024, 1024)
        self.head = torch.nn.Linear(1024, 1024, bias=False)
        self.tied = torch.nn.Linear(1024, 1024, bias=False)
        self.tied.weight = self.embed.weight
        self.register_buffer("table", torch.arange(1000.0), persistent=False)
        self.scale = torch.full((16,), 3.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.table
        return self.tied(self.head(self.embed(tokens))) * self.scale[0] + table[7]


class Device:
    """A rank with a model and a KV cache in its arena."""

    def __init__(self, folder: Path) -> None:
        self.memory = ArenaMemory(str(folder / "park"), 0, 1, 256 * MIB)
        torch.manual_seed(3)
        with self.memory.context("weights"):
            self.model = Model().eval()
        self.memory.seal(self.model)
        with self.memory.context("kv_cache"):
            self.kv = torch.zeros(32 * MIB, dtype=torch.int8)
        self.rank = Rank(0, self.memory)
        self.rank.loaded()
        self.rank.kv_ready()

    def answer(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.arange(4))

    def resident(self) -> float:
        return self.rank.state().resident_mib


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def ours() -> float:
    return pss_anon(Path("/proc/self/smaps_rollup").read_text()) / MIB


def test_weights_and_kv_are_in_the_arena(device: Device) -> None:
    state = device.rank.state()
    assert state.weights_mib == pytest.approx(8, abs=0.1)
    assert state.kv_mib == 32
    assert state.resident_mib == pytest.approx(40, abs=4)


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_the_process_is_as_small_as_before(tmp_path: Path, level: int) -> None:
    gc.collect()
    before = ours()
    device = Device(tmp_path)
    assert ours() - before > 35
    device.rank.prepare(level)
    device.rank.sleep(level)
    gc.collect()
    assert device.rank.error == ""
    assert device.resident() == 0
    assert ours() - before < 4


def test_the_same_answer_after_every_cycle(device: Device) -> None:
    before, address = device.answer(), device.model.head.weight.data_ptr()
    for _ in range(5):
        device.rank.prepare(1)
        device.rank.sleep(1)
        device.rank.wake(["weights"])
        device.rank.wake(["kv_cache"])
        assert (device.rank.weights, device.rank.kv, device.rank.error) == (Weights.RESIDENT, KV.RESIDENT, "")
        assert torch.equal(device.answer(), before)
        assert device.model.head.weight.data_ptr() == address


def test_kv_comes_back_empty(device: Device) -> None:
    device.kv.fill_(5)
    device.rank.sleep(1)
    device.rank.wake(None)
    assert not device.kv.any()


def test_level_2_keeps_what_no_checkpoint_holds(device: Device) -> None:
    device.rank.sleep(2)
    device.rank.wake(None)
    assert device.rank.weights is Weights.DISCARDED
    table: torch.Tensor = device.model.table
    assert torch.equal(table, torch.arange(1000.0))
    assert torch.equal(device.model.scale, torch.full((16,), 3.0))
    assert not device.model.head.weight.any()
    assert not device.model.embed.weight.any()


def test_level_2_leaves_no_copy(device: Device, tmp_path: Path) -> None:
    device.rank.prepare(1)
    assert os.listdir(tmp_path / "park") != []
    device.rank.sleep(2)
    assert os.listdir(tmp_path / "park") == []


def test_a_buffer_that_changed_while_serving_makes_the_copy_stale(device: Device) -> None:
    device.rank.prepare(1)
    device.model.scale[3] = 5.0
    device.rank.prepare(1)
    assert device.rank.copied > 0
    device.rank.sleep(1)
    device.rank.wake(None)
    assert device.model.scale[3].item() == 5.0
    device.rank.prepare(1)
    assert device.rank.copied == 0


def load(device: Device, value: float) -> Callable[[], None]:
    def fill() -> None:
        with torch.no_grad(), device.memory.context("weights"):
            for parameter in device.model.parameters():
                parameter.copy_(torch.full_like(parameter, value))
        device.memory.check_unmoved()

    return fill


def test_a_reload_in_place_after_level_2(device: Device) -> None:
    device.rank.sleep(2)
    device.rank.wake(None)
    device.rank.reload(2, load(device, 0.5))
    assert (device.rank.weights, device.rank.pending, device.rank.error) == (Weights.RESIDENT, 2, "")
    device.rank.commit(2)
    before = device.answer()
    device.rank.prepare(1)
    device.rank.sleep(1)
    device.rank.wake(None)
    assert torch.equal(device.answer(), before)


def test_temporaries_of_a_reload_leave_nothing(device: Device) -> None:
    before = device.rank.state()
    device.rank.reload(1, load(device, 0.5))
    gc.collect()
    after = device.rank.state()
    assert after.weights_mib == before.weights_mib
    assert after.resident_mib == pytest.approx(before.resident_mib, abs=2)


def test_weights_that_a_load_moved_are_refused(device: Device) -> None:
    def replace() -> None:
        device.model.head.weight = torch.nn.Parameter(torch.zeros(1024, 1024))
        device.memory.check_unmoved()

    device.rank.reload(1, replace)
    assert device.rank.weights is Weights.PARTIAL
    assert device.rank.error == "MisplacedError: moved by the load: head.weight"


def test_weights_outside_the_arena_are_refused(tmp_path: Path) -> None:
    memory = ArenaMemory(str(tmp_path), 0, 1, 64 * MIB)
    with memory.context("weights"):
        model = Model()
    model.head.weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(MisplacedError, match=r"outside the arena: head\.weight"):
        memory.seal(model)


def test_many_misplaced_tensors_are_not_all_listed(tmp_path: Path) -> None:
    memory = ArenaMemory(str(tmp_path), 0, 1, 64 * MIB)
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(20)))
    with pytest.raises(MisplacedError, match=r" \.\.\.$"):
        memory.seal(model)


def test_other_tags_of_vllm_are_left_to_malloc(device: Device) -> None:
    with device.memory.context("runtime"):
        made = torch.zeros(64)
    base = device.model.head.weight.data_ptr()
    assert abs(made.data_ptr() - base) > 256 * MIB


def test_the_copy_begins_beside_serving(device: Device) -> None:
    device.rank.park()
    device.rank.prepare(1)
    assert device.rank.copied == 0
    state = device.rank.state()
    assert state.parked is not None
    assert (state.parked.version, state.parking) == (0, False)
