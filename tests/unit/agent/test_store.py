"""What the agent must not forget."""

import asyncio
import json
import os
import stat
from pathlib import Path

import pytest
from ebbtide_api.verbs import Operation, OperationStatus
from ebbtide_runtime.agent import store as module
from ebbtide_runtime.agent.store import REMEMBERED, Committed, Recorded, Store, StoreError, write_atomic


def record(key: str) -> Recorded:
    operation = Operation(id=key, verb="sleep", target="m", status=OperationStatus.DONE)
    return Recorded(digest=f"d-{key}", operation=operation)


def test_a_new_member_remembers_nothing(tmp_path: Path) -> None:
    memory = Store(tmp_path / "state.json").memory
    assert (memory.epoch, memory.committed, memory.current) == (0, Committed(), None)
    assert not (tmp_path / "state.json").exists()


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    async def save() -> None:
        store = Store(path)
        await store.save(epoch=7, committed=Committed(version=3, path="/w/v3"), residual=560 << 20)
        await store.save(canaries={"3:x": [1, 2]}, cycle=4, current=record("running"))

    asyncio.run(save())
    memory = Store(path).memory
    assert (memory.epoch, memory.committed.version, memory.residual) == (7, 3, 560 << 20)
    assert (memory.canaries, memory.cycle) == ({"3:x": [1, 2]}, 4)
    assert memory.current is not None
    assert memory.current.operation.id == "running"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_changes_that_race_are_all_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    async def race() -> None:
        store = Store(path)
        await asyncio.gather(store.save(epoch=9), store.save(cycle=2), store.save(residual=5))

    asyncio.run(race())
    memory = Store(path).memory
    assert (memory.epoch, memory.cycle, memory.residual) == (9, 2, 5)


def test_an_operation_that_an_agent_died_in_is_not_forgotten_for_another_that_ends(tmp_path: Path) -> None:
    """It is answered once its goal is known; forgotten, its key would run it again."""

    async def finish() -> Store:
        store = Store(tmp_path / "state.json")
        await store.save(current=record("begun before"))
        await store.finish(record("a no-op"))
        return store

    store = asyncio.run(finish())
    assert store.find("begun before") == store.memory.current == record("begun before")
    assert store.find("a no-op") == record("a no-op")
    asyncio.run(store.finish(record("begun before")))
    assert store.memory.current is None


def test_the_last_operations_are_remembered(tmp_path: Path) -> None:
    async def finish() -> Store:
        store = Store(tmp_path / "state.json")
        await store.save(current=record("op-0"))
        for number in range(REMEMBERED + 3):
            await store.finish(record(f"op-{number}"))
        return store

    store = asyncio.run(finish())
    assert len(store.memory.finished) == REMEMBERED
    assert store.memory.current is None
    assert store.find("op-2") is None
    found = store.find("op-3")
    assert found is not None
    assert found.digest == "d-op-3"


def test_the_running_operation_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.json")
    asyncio.run(store.save(current=record("now")))
    assert store.find("now") is not None
    assert store.find("other") is None


@pytest.mark.parametrize("text", ["", "{", '{"epoch": "many"}', "[]"])
def test_a_damaged_memory_stops_the_start(tmp_path: Path, text: str) -> None:
    """Starting at epoch 0 would let a dead holder back in."""
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StoreError, match="state\\.json is damaged"):
        Store(path)


def test_fields_of_a_newer_agent_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"epoch": 3, "somethingNew": 1}))
    assert Store(path).memory.epoch == 3


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, b"old")

    def broken(_descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(module.os, "fsync", broken)
    with pytest.raises(OSError, match="no space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_the_order_is_file_rename_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(module.os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_atomic(tmp_path / "state.json", b"{}")
    assert order == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("model", "layout", "committed", "residual"),
    [("m", "l", 3, 560), ("m", "other", 3, None), ("other", "l", 0, None), ("other", "other", 0, None)],
)
def test_what_was_learned_of_another_model_is_forgotten(
    tmp_path: Path, model: str, layout: str, committed: int, residual: int | None
) -> None:
    path = tmp_path / "state.json"

    async def change() -> None:
        store = Store(path)
        await store.fit("m", "l")
        await store.save(epoch=7, committed=Committed(version=3, path="/w/v3"), residual=560, canaries={"3:x": [1]})
        await store.fit(model, layout)

    asyncio.run(change())
    memory = Store(path).memory
    assert (memory.epoch, memory.committed.version, memory.residual) == (7, committed, residual)
    assert (memory.model, memory.layout) == (model, layout)
    assert bool(memory.canaries) is (residual is not None)


def test_a_memory_of_before_digests_keeps_its_version(tmp_path: Path) -> None:
    async def change() -> Store:
        store = Store(tmp_path / "state.json")
        await store.save(committed=Committed(version=3, path="/w/v3"))
        await store.fit("m", "l")
        return store

    assert asyncio.run(change()).memory.committed.version == 3
