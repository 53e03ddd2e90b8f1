"""Tensors in the arena: all that a model makes lies there, and what it drops goes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from ebbtide_runtime.engine import storage
from ebbtide_runtime.engine.storage import ArenaMode, Blocks, Region
from ebbtide_runtime.native import Arena, Tag

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(256 * MIB)
    yield made
    gc.collect()
    made.close()


@pytest.fixture
def blocks(arena: Arena) -> Blocks:
    return Blocks(arena, Tag.WEIGHTS)


def inside(tensor: torch.Tensor, arena: Arena) -> bool:
    base = arena.base(Tag.WEIGHTS)
    return base <= tensor.data_ptr() < base + arena.stats(Tag.WEIGHTS).span


MAKERS = {
    "empty": lambda: torch.empty(3, 5),
    "empty_strided": lambda: torch.empty_strided((4, 4), (1, 4)),
    "zeros": lambda: torch.zeros(7),
    "ones": lambda: torch.ones(7),
    "full": lambda: torch.full((2, 2), 3.0),
    "arange": lambda: torch.arange(9),
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "scalar": lambda: torch.tensor(1.0),
    "randn": lambda: torch.randn(4, 4),
    "clone": lambda: torch.zeros(4).clone(),
    "to": lambda: torch.zeros(4).to(torch.bfloat16),
    "matmul": lambda: torch.ones(4, 4) @ torch.ones(4, 4),
    "cat": lambda: torch.cat([torch.zeros(2), torch.ones(2)]),
    "contiguous": lambda: torch.ones(3, 4).t().contiguous(),
    "topk": lambda: torch.topk(torch.arange(9.0), 3).values,
    "parameter": lambda: torch.nn.Parameter(torch.empty(4)),
    "linear": lambda: torch.nn.Linear(4, 4).weight,
    "embedding": lambda: torch.nn.Embedding(4, 4).weight,
    "empty_like": lambda: torch.empty_like(torch.zeros(6)),
    "new_empty": lambda: torch.zeros(2).new_empty(8),
}


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_makes_a_tensor_makes_it_in_the_arena(name: str, blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        made = MAKERS[name]()
    assert inside(made, arena)
    assert blocks.holds(made)
    assert made.device.type == "cpu"


@pytest.mark.parametrize("name", ["zeros", "ones", "full", "arange", "tensor", "scalar", "to", "matmul", "cat", "topk"])
def test_the_values_are_torchs_own(name: str, blocks: Blocks) -> None:
    with ArenaMode(blocks):
        made = MAKERS[name]()
    assert torch.equal(made, MAKERS[name]())
    assert made.stride() == MAKERS[name]().stride()


def test_reused_memory_is_zeroed_for_zeros(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        first = torch.ones(1000)
        address = first.data_ptr()
        del first
        second = torch.zeros(1000)
    assert second.data_ptr() == address
    assert not second.any()


def test_outside_the_mode_nothing_changes(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        pass
    assert not blocks.holds(torch.zeros(8))


def test_views_and_in_place_work_stay_where_they_are(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        whole = torch.zeros(4, 4)
        row = whole[1]
        row.fill_(3)
        whole.add_(1)
        whole.t().mul_(2)
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert whole.sum().item() == 4 * 4 * 2 + 4 * 3 * 2
    assert arena.stats(Tag.WEIGHTS).blocks == 1


def test_a_tensor_from_outside_is_not_moved(blocks: Blocks) -> None:
    outer = torch.zeros(4)
    with ArenaMode(blocks):
        outer.add_(1)
        view = outer[:2]
    assert not blocks.holds(outer)
    assert view.data_ptr() == outer.data_ptr()


def test_temporaries_leave_nothing(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        kept = torch.ones(1000)
        for _ in range(50):
            kept = (kept * 2 + 1).clone()
    gc.collect()
    assert arena.stats(Tag.WEIGHTS).blocks == 1
    assert blocks.regions() == [Region(kept.data_ptr(), 4000)]


def test_a_view_keeps_its_block(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        tail = torch.arange(100)[90:]
    gc.collect()
    assert tail.tolist() == list(range(90, 100))
    assert arena.stats(Tag.WEIGHTS).blocks == 1
    del tail
    gc.collect()
    assert arena.stats(Tag.WEIGHTS).blocks == 0


def test_results_that_share_memory_still_do(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        first, second = torch.arange(6).split(3)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_empty_tensors_and_other_devices_take_nothing(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        nothing = torch.empty(0)
        meta = torch.empty(1 << 40, device="meta")
        meta_zeros = torch.zeros(1 << 40, device="meta")
    assert (nothing.numel(), meta.is_meta, meta_zeros.is_meta) == (0, True, True)
    assert arena.stats(Tag.WEIGHTS).blocks == 0


def test_a_large_zeroed_tensor_is_never_there_twice(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        large = torch.zeros(64 * MIB, dtype=torch.int8)
    stats = arena.stats(Tag.WEIGHTS)
    assert (stats.blocks, stats.live, stats.resident) == (1, 64 * MIB, 64 * MIB)
    assert large.numel() == 64 * MIB


def test_modules_train_as_ever(blocks: Blocks) -> None:
    torch.manual_seed(1)
    with ArenaMode(blocks):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    assert torch.equal(model(torch.ones(2, 4)), plain(torch.ones(2, 4)))
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_region_is_seen_as_its_bytes(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        made = torch.arange(4, dtype=torch.uint8)
    view = storage.view(Region(made.data_ptr(), 4))
    view[2] = 9
    assert made.tolist() == [0, 1, 9, 3]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))
        self.register_buffer("table", torch.arange(5.0), persistent=False)
        self.hidden = torch.full((3,), 2.0)


def named(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def test_what_is_outside_is_named(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        model = Model()
    assert storage.outside(named(model), blocks) == []
    model.weight.data = torch.ones(8, 8)
    assert storage.outside(named(model), blocks) == ["weight"]


def test_what_no_parameter_holds_is_found(blocks: Blocks) -> None:
    with ArenaMode(blocks):
        model = Model()
    kept = storage.unshared(blocks, model.parameters())
    assert kept == sorted([Region(model.table.data_ptr(), 20), Region(model.hidden.data_ptr(), 12)])


def test_the_digest_tells_layouts_apart(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        model = Model()
    base = arena.base(Tag.WEIGHTS)
    placed = storage.place(named(model))
    digest = storage.layout_digest(placed, base)
    assert 0 <= digest < 2**64
    assert digest == storage.layout_digest(storage.place(named(model)), base)
    first, *rest = placed
    for other in (
        first._replace(name="x"),
        first._replace(address=first.address + 64),
        first._replace(shape=(1,)),
        first._replace(dtype="torch.int8"),
    ):
        assert storage.layout_digest([other, *rest], base) != digest


def test_the_digest_does_not_depend_on_where_the_arena_is(blocks: Blocks, arena: Arena) -> None:
    with ArenaMode(blocks):
        model = Model()
    placed = storage.place(named(model))
    moved = [each._replace(address=each.address + (1 << 30)) for each in placed]
    base = arena.base(Tag.WEIGHTS)
    assert storage.layout_digest(placed, base) == storage.layout_digest(moved, base + (1 << 30))
