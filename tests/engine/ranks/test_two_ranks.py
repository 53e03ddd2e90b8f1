"""Two ranks, each with its own arena, parked copy and shard, move as one."""

from pathlib import Path

import pytest
from ebbtide_api.state import KV, Weights

from tests.support.engines import RealEngine
from tests.support.launching import until
from tests.support.models import medium

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_each_rank_holds_its_shard(engine: RealEngine) -> None:
    ranks = engine.state().ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    assert len({rank.pid for rank in ranks}) == 2
    assert all(100 < rank.weights_mib < 200 for rank in ranks)


def test_both_sleep_and_wake(engine: RealEngine) -> None:
    before = engine.tokens()
    awake = engine.used_mib()
    ranks = engine.sleep(1).ranks
    assert {(rank.weights, rank.kv, rank.resident_mib) for rank in ranks} == {(Weights.PARKED, KV.DISCARDED, 0)}
    held = sum(rank.weights_mib + rank.kv_mib for rank in ranks)
    assert awake - engine.used_mib() >= 0.95 * held
    engine.wake()
    assert engine.tokens() == before


def test_each_rank_has_its_own_copy(engine: RealEngine) -> None:
    engine.control("park")
    until(lambda: not any(rank.parking for rank in engine.state().ranks), "the copies")
    names = sorted(file.name for file in Path(engine.launch.member.park_dir).iterdir())
    assert names == ["rank0of2.park", "rank1of2.park"]
    assert {rank.copied_bytes for rank in engine.sleep(1).ranks} == {0}
    engine.wake()


def test_each_rank_loads_its_shard_of_new_weights(engine: RealEngine) -> None:
    before = engine.tokens()
    engine.sleep(2)
    engine.control("wake", tag="weights")
    version = engine.load(medium(seed=1))
    engine.control("wake", tag="kv_cache")
    engine.control("resume")
    assert {rank.version for rank in engine.state().ranks} == {version}
    assert engine.tokens() != before
    engine.control("pause", mode="wait", clearCache=True)
    engine.load(medium())
    engine.control("resume")
    assert engine.tokens() == before


def test_one_rank_without_a_copy_stops_the_sleep_of_both(engine: RealEngine) -> None:
    """Two-phase: every rank prepares before any gives its memory away."""
    engine.load(medium())
    folder = Path(engine.launch.member.park_dir)
    blocked = folder / "rank1of2.park"
    blocked.unlink(missing_ok=True)
    blocked.mkdir()
    (blocked / "in the way").touch()
    try:
        engine.control("pause", mode="abort", clearCache=True)
        answer = engine.post("sleep", level=1)
        assert (answer.status_code, answer.json()["code"]) == (507, "HOST_MEMORY_INSUFFICIENT")
        assert answer.json()["details"]["ranks"][0].startswith("rank 1: ")
        assert {rank.weights for rank in engine.state().ranks} == {Weights.RESIDENT}
    finally:
        (blocked / "in the way").unlink()
        blocked.rmdir()
    engine.control("resume")
    # The failed call left no stale reply behind for this one.
    engine.sleep(1)
    engine.wake()
    assert engine.tokens()


def test_both_end_asleep(engine: RealEngine) -> None:
    """Nothing that runs at the end may touch memory that was given away: that is a SIGSEGV."""
    engine.sleep(1)
    assert engine.launch.family() >= 4
    engine.launch.process.terminate()
    assert engine.launch.wait() == 0
    assert engine.launch.family() == 0
    assert "Segmentation" not in engine.launch.log.read_text(errors="replace")
