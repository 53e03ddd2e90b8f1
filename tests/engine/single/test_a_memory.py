"""Lending the memory of a real engine: measured from outside, before weights were loaded, awake, and asleep."""

import pytest
from ebbtide_api.state import KV, Weights
from ebbtide_runtime.native import Field

from tests.support.engines import RealEngine
from tests.support.launching import until
from tests.support.models import medium

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_the_engine_is_there_with_all_its_memory(engine: RealEngine) -> None:
    state = engine.state()
    (rank,) = state.ranks
    assert (rank.weights, rank.kv, rank.version, rank.pending_version) == (Weights.RESIDENT, KV.RESIDENT, 0, None)
    assert rank.weights_mib > 200
    assert rank.kv_mib == pytest.approx(1024, abs=16)
    assert (state.paused, state.weight_version, state.unfinished) == (False, 0, 0)
    assert state.kv_blocks > 100


def test_what_it_used_before_loading_was_measured(engine: RealEngine) -> None:
    assert 200 < engine.baseline_mib < 4000
    (rank,) = engine.state().ranks
    assert engine.used_mib() - engine.baseline_mib >= 0.95 * (rank.weights_mib + rank.kv_mib)


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_it_is_as_small_as_before_it_loaded(engine: RealEngine, level: int) -> None:
    before = engine.tokens()
    state = engine.sleep(level)
    (rank,) = state.ranks
    assert (rank.kv, rank.resident_mib, state.paused) == (KV.DISCARDED, 0, True)
    assert rank.weights is (Weights.PARKED if level == 1 else Weights.DISCARDED)
    assert engine.used_mib() <= 1.05 * engine.baseline_mib
    engine.control("wake", tag="weights")
    if level == 2:
        engine.load(medium())
    engine.control("wake", tag="kv_cache")
    engine.control("resume")
    assert engine.tokens() == before


def test_a_second_sleep_copies_no_byte(engine: RealEngine) -> None:
    engine.sleep(1)
    engine.wake()
    (rank,) = engine.sleep(1).ranks
    assert rank.copied_bytes == 0
    engine.wake()


def test_cycles_leave_nothing_behind_and_change_no_token(engine: RealEngine) -> None:
    before = engine.tokens()
    engine.sleep(1)
    first = engine.used_mib()
    for _ in range(5):
        engine.wake()
        assert engine.tokens() == before
        engine.sleep(1)
    assert engine.used_mib() <= 1.01 * first
    engine.wake()


def test_updates_leave_nothing_behind(engine: RealEngine) -> None:
    engine.sleep(2)
    first = engine.used_mib()
    for _ in range(3):
        engine.control("wake", tag="weights")
        engine.load(medium())
        engine.control("wake", tag="kv_cache")
        engine.sleep(2)
    assert engine.used_mib() <= 1.01 * first
    engine.control("wake", tag="weights")
    engine.load(medium())
    engine.control("wake", tag="kv_cache")
    engine.control("resume")


def test_the_copy_is_made_beside_serving(engine: RealEngine) -> None:
    version = engine.load(medium())
    state = engine.control("park")
    assert state.ranks[0].parking
    assert engine.tokens()
    until(lambda: not engine.state().ranks[0].parking, "the copy")
    (rank,) = engine.state().ranks
    assert rank.parked is not None
    assert (rank.parked.version, rank.parked.valid, rank.last_error) == (version, True, "")
    assert engine.launch.measure().host_bytes >= 200 << 20
    assert engine.sleep(1).ranks[0].copied_bytes == 0
    engine.wake()


def test_a_load_voids_the_copy(engine: RealEngine) -> None:
    engine.control("park")
    engine.load(medium())
    assert engine.state().ranks[0].parked is None
    assert engine.launch.measure().host_bytes == 0


def test_the_kv_cache_wakes_after_the_weights_and_the_scheduler_with_it(engine: RealEngine) -> None:
    engine.sleep(1)
    assert engine.control("wake", tag="weights").paused
    assert not engine.control("wake", tag="kv_cache").paused
    assert engine.page.get(Field.ADMISSION) == 0
    engine.control("resume")


def test_waking_what_is_awake_changes_nothing(engine: RealEngine) -> None:
    before = engine.tokens()
    engine.control("wake", tag="weights")
    engine.control("wake", tag="kv_cache")
    assert engine.tokens() == before


def test_sleeping_twice_changes_nothing(engine: RealEngine) -> None:
    engine.sleep(1)
    (rank,) = engine.control("sleep", level=2).ranks
    assert (rank.weights, rank.kv) == (Weights.PARKED, KV.DISCARDED)
    engine.wake()
