"""Operations: once per id, remembered over a restart, waited for without polling."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.verbs import LendRequest, LendResult, OperationStatus
from ebbtide_operator.operations import Operations, fingerprint
from ebbtide_operator.plan import Progress

pytestmark = pytest.mark.anyio
RESULT = LendResult(epoch=2, devices=[], members=[])


def opened(folder: Path, kept: int = 256) -> Operations:
    operations = Operations(folder / "operations.json", kept)
    operations.load()
    return operations


async def test_an_operation_from_beginning_to_end(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    begun = await operations.begin("op", "lend", "actor", "digest")
    assert begun.status is OperationStatus.RUNNING
    assert set(operations.started("actor", ("lend",))) == {"op"}
    assert operations.started("other", ("lend",)) == operations.started("actor", ("reclaim",)) == {}
    operations.progress("op", Progress("half"))
    seen = operations.find("op")
    assert seen is not None
    assert seen.progress == "half"
    await operations.finish("op", RESULT)
    ended = operations.find("op")
    assert ended is not None
    assert (ended.status, ended.progress, ended.result) == (OperationStatus.DONE, "done", RESULT.wire())
    assert ended.ended_at >= ended.started_at
    assert operations.open_verbs() == []
    operations.progress("op", Progress("late"))
    assert operations.find("op") == ended


async def test_ids_are_made_when_none_is_given(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    made = [await operations.begin(None, "lend", "actor", "d") for _ in range(3)]
    assert len({operation.id for operation in made}) == 3


async def test_the_same_id_is_the_same_call_or_refused(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    digest = fingerprint("lend", "actor", LendRequest())
    assert operations.repeated("op", digest) is None
    begun = await operations.begin("op", "lend", "actor", digest)
    assert operations.repeated("op", digest) == begun
    other = fingerprint("lend", "actor", LendRequest(level=2))
    with pytest.raises(EbbtideError) as caught:
        operations.repeated("op", other)
    assert caught.value.code is ErrorCode.OPERATION_MISMATCH


async def test_who_waits_hears_at_once(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    await operations.begin("op", "lend", "actor", "d")
    waiting = asyncio.create_task(operations.wait("op", 10))
    await asyncio.sleep(0.02)
    began = time.monotonic()
    await operations.finish("op", error=ErrorBody(code=ErrorCode.INTERNAL, message="no"))
    heard = await waiting
    assert heard is not None
    assert heard.status is OperationStatus.FAILED
    assert time.monotonic() - began < 1


async def test_a_wait_ends_without_news(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    await operations.begin("op", "lend", "actor", "d")
    heard = await operations.wait("op", 0.02)
    assert heard is not None
    assert heard.status is OperationStatus.RUNNING
    assert await operations.wait("unknown", 5) is None


async def test_an_end_is_seen_only_when_it_is_revealed(tmp_path: Path) -> None:
    operations = opened(tmp_path)
    await operations.begin("op", "lend", "actor", "d")
    await operations.write_end("op", RESULT)
    seen = operations.find("op")
    assert seen is not None
    assert seen.status is OperationStatus.RUNNING
    kept = opened(tmp_path).find("op")
    assert kept is not None
    assert kept.status is OperationStatus.DONE
    operations.reveal(["op"])
    assert operations.find("op") == kept


async def test_operations_survive_a_restart(tmp_path: Path) -> None:
    first = opened(tmp_path)
    await first.begin("ended", "lend", "actor", "d")
    await first.finish("ended", RESULT)
    await first.begin("open", "reclaim", "actor", "d")
    second = opened(tmp_path)
    assert second.find("ended") == first.find("ended")
    assert set(second.started("actor", ("lend", "reclaim"))) == {"open"}


async def test_only_so_many_are_kept_and_open_ones_always(tmp_path: Path) -> None:
    operations = opened(tmp_path, kept=5)
    await operations.begin("open", "lend", "actor", "d")
    for number in range(20):
        await operations.begin(f"op{number}", "lend", "actor", "d")
        await operations.finish(f"op{number}", RESULT)
    assert operations.find("op19") is not None
    assert operations.find("op3") is None
    assert operations.find("open") is not None
    assert opened(tmp_path, kept=5).find("open") is not None


async def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "operations.json").write_text('{"entries": [{"oper')
    operations = opened(tmp_path)
    assert operations.find("op") is None
    assert [name for name in os.listdir(tmp_path) if "corrupt" in name]
    await operations.begin("op", "lend", "actor", "d")
    assert opened(tmp_path).find("op") is not None


def test_a_fingerprint_tells_requests_apart() -> None:
    asked = {
        fingerprint("lend", "a", LendRequest()),
        fingerprint("lend", "b", LendRequest()),
        fingerprint("reclaim", "a", LendRequest()),
        fingerprint("lend", "a", LendRequest(level=1)),
    }
    assert len(asked) == 4
    assert fingerprint("lend", "a", LendRequest()) == fingerprint("lend", "a", LendRequest(level=0))
