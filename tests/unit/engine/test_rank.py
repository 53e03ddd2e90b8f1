"""One rank's states: every order of steps ends in a state that says the truth about the memory."""

from __future__ import annotations

from typing import Any

import pytest
from ebbtide_api.state import KV, ParkedCopy, Weights
from ebbtide_runtime.engine.rank import Rank
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

BYTES = 7 << 20


class FakeMemory:
    """A device that notes its calls, refuses to be used wrongly, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing = ""
        self.copy: int | None = None
        self.weights_mapped = True
        self.kv_mapped = True
        self.whole = True

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.failing == call:
            raise OSError(f"{call} failed")

    def prepare(self, version: int) -> int:
        self._note("prepare")
        had, self.copy = self.copy, version
        return 0 if had == version else BYTES

    def release_weights(self, keep_copy: bool) -> None:
        assert self.weights_mapped
        self._note("release_weights")
        self.weights_mapped = self.whole = False
        if not keep_copy:
            self.copy = None

    def restore_weights(self, from_copy: bool) -> None:
        assert not self.weights_mapped
        self._note("restore_weights")
        self.weights_mapped, self.whole = True, from_copy and self.copy is not None

    def release_kv(self) -> None:
        assert self.kv_mapped
        self._note("release_kv")
        self.kv_mapped = False

    def restore_kv(self) -> None:
        assert not self.kv_mapped
        self._note("restore_kv")
        self.kv_mapped = True

    def start_parking(self, version: int) -> None:
        assert self.whole
        self._note("start_parking")
        self.copy = version

    def forget_copy(self) -> None:
        self.copy = None

    def sizes(self) -> tuple[int, int, int]:
        return BYTES, BYTES, BYTES * (self.weights_mapped + self.kv_mapped)

    def parked(self) -> tuple[ParkedCopy | None, bool, str]:
        copy = None if self.copy is None else ParkedCopy(version=self.copy, mib=7, valid=True)
        return copy, False, ""


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture
def rank(memory: FakeMemory) -> Rank:
    made = Rank(3, memory)
    made.loaded()
    made.kv_ready()
    return made


def load(memory: FakeMemory) -> Any:
    def fill() -> None:
        memory.whole = True

    return fill


def fail() -> None:
    raise RuntimeError("torn")


def test_a_new_rank_knows_nothing(memory: FakeMemory) -> None:
    state = Rank(0, memory).state()
    assert (state.weights, state.kv) == (Weights.UNKNOWN, KV.UNKNOWN)


def test_a_loaded_rank_is_resident_at_version_0(rank: Rank) -> None:
    state = rank.state()
    assert (state.rank, state.weights, state.kv, state.version, state.pending_version) == (
        3,
        Weights.RESIDENT,
        KV.RESIDENT,
        0,
        None,
    )
    assert (state.weights_mib, state.kv_mib, state.resident_mib) == (7, 7, 14)


def test_level_1_parks_and_wakes(rank: Rank, memory: FakeMemory) -> None:
    rank.prepare(1)
    rank.sleep(1)
    assert (rank.weights, rank.kv, rank.copied) == (Weights.PARKED, KV.DISCARDED, BYTES)
    rank.wake(["weights"])
    assert (rank.weights, rank.kv) == (Weights.RESIDENT, KV.DISCARDED)
    rank.wake(["kv_cache"])
    assert (rank.weights, rank.kv, rank.error) == (Weights.RESIDENT, KV.RESIDENT, "")


@pytest.mark.parametrize("again", [["weights"], ["kv_cache"], None])
def test_what_is_awake_is_not_woken_again(rank: Rank, memory: FakeMemory, again: list[str] | None) -> None:
    """Neither before it ever slept nor after it woke: the pages of what serves are not touched."""
    rank.wake(again)
    assert memory.calls == []
    rank.sleep(1)
    rank.wake(None)
    rank.wake(again)
    assert [memory.calls.count(call) for call in ("restore_weights", "restore_kv")] == [1, 1]
    assert (rank.weights, rank.kv, rank.error) == (Weights.RESIDENT, KV.RESIDENT, "")


def test_a_second_sleep_copies_nothing(rank: Rank) -> None:
    for copied in (BYTES, 0, 0):
        rank.prepare(1)
        rank.sleep(1)
        assert rank.state().copied_bytes == copied
        rank.wake(None)


def test_what_was_prepared_is_not_prepared_again(rank: Rank, memory: FakeMemory) -> None:
    rank.prepare(1)
    rank.sleep(1)
    assert memory.calls == ["prepare", "release_kv", "release_weights"]


def test_a_load_undoes_the_preparation(rank: Rank, memory: FakeMemory) -> None:
    rank.prepare(1)
    rank.reload(1, load(memory))
    rank.sleep(1)
    assert memory.copy == 1


def test_level_2_discards_and_wakes_empty(rank: Rank, memory: FakeMemory) -> None:
    rank.prepare(2)
    rank.sleep(2)
    assert (rank.weights, memory.copy, memory.calls) == (Weights.DISCARDED, None, ["release_kv", "release_weights"])
    rank.wake(None)
    assert (rank.weights, rank.kv) == (Weights.DISCARDED, KV.RESIDENT)


def test_a_reload_after_level_2_makes_weights_whole(rank: Rank, memory: FakeMemory) -> None:
    rank.sleep(2)
    rank.wake(["weights"])
    rank.reload(7, load(memory))
    assert (rank.weights, rank.pending, rank.version) == (Weights.RESIDENT, 7, 0)
    rank.commit(7)
    assert (rank.version, rank.pending, rank.error) == (7, None, "")


def test_a_reload_voids_the_parked_copy(rank: Rank, memory: FakeMemory) -> None:
    rank.park()
    assert memory.copy == 0
    rank.reload(1, load(memory))
    assert memory.copy is None


def test_uncommitted_weights_are_not_parked_beside_serving(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(1, load(memory))
    rank.park()
    assert "start_parking" not in memory.calls


def test_uncommitted_weights_sleep_as_their_own_version(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(4, load(memory))
    rank.prepare(1)
    rank.sleep(1)
    assert memory.copy == 4
    rank.wake(None)
    assert (rank.weights, rank.pending) == (Weights.RESIDENT, 4)


def test_no_weights_are_left_pending_after_level_2(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(4, load(memory))
    rank.sleep(2)
    assert rank.pending is None


def test_a_failed_preparation_touches_nothing(rank: Rank, memory: FakeMemory) -> None:
    memory.failing = "prepare"
    rank.prepare(1)
    assert rank.state().last_error == "OSError: prepare failed"
    assert (rank.weights, rank.kv, memory.calls) == (Weights.RESIDENT, KV.RESIDENT, ["prepare"])


def test_a_failed_restore_leaves_partial_weights(rank: Rank, memory: FakeMemory) -> None:
    rank.sleep(1)
    memory.failing = "restore_weights"
    rank.wake(["weights"])
    assert (rank.weights, rank.error) == (Weights.PARTIAL, "OSError: restore_weights failed")
    memory.failing = ""
    rank.reload(1, load(memory))
    assert (rank.weights, rank.error) == (
        Weights.PARTIAL,
        "ValueError: an earlier load failed midway: the engine must restart",
    )


def test_a_failed_kv_restore_is_unknown(rank: Rank, memory: FakeMemory) -> None:
    rank.sleep(1)
    memory.failing = "restore_kv"
    rank.wake(None)
    assert (rank.weights, rank.kv) == (Weights.RESIDENT, KV.UNKNOWN)


def test_a_failed_reload_poisons_until_restart(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(1, fail)
    assert (rank.weights, rank.pending, rank.error) == (Weights.PARTIAL, None, "RuntimeError: torn")
    rank.sleep(2)
    rank.wake(None)
    rank.reload(2, load(memory))
    assert rank.weights is Weights.DISCARDED
    assert "restart" in rank.error


def test_a_load_that_is_not_begun_harms_nothing(rank: Rank, memory: FakeMemory) -> None:
    rank.park()
    rank.reload(1, load(memory), fail)
    assert (rank.weights, rank.pending, memory.copy) == (Weights.RESIDENT, None, 0)
    rank.reload(1, load(memory))
    assert (rank.pending, rank.error) == (1, "")


def test_partial_weights_are_never_parked(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(1, fail)
    rank.prepare(1)
    rank.park()
    rank.sleep(1)
    assert (rank.weights, memory.calls) == (Weights.DISCARDED, ["release_kv", "release_weights"])


def test_asleep_weights_cannot_be_loaded(rank: Rank, memory: FakeMemory) -> None:
    rank.sleep(2)
    rank.reload(1, load(memory))
    assert "wake them first" in rank.error
    assert rank.weights is Weights.DISCARDED


def test_only_what_is_pending_can_be_committed(rank: Rank, memory: FakeMemory) -> None:
    rank.commit(1)
    assert "version 1 is not loaded" in rank.error
    rank.reload(1, load(memory))
    rank.commit(2)
    assert (rank.version, rank.pending) == (0, 1)


def test_committing_again_changes_nothing(rank: Rank, memory: FakeMemory) -> None:
    rank.reload(1, load(memory))
    rank.commit(1)
    rank.commit(1)
    assert (rank.version, rank.error) == (1, "")


def test_the_kv_cache_can_go_alone(rank: Rank, memory: FakeMemory) -> None:
    rank.discard(("kv_cache",))
    assert (rank.weights, rank.kv, memory.calls) == (Weights.RESIDENT, KV.DISCARDED, ["release_kv"])
    rank.sleep(1)
    assert memory.calls.count("release_kv") == 1


def test_weights_cannot_be_discarded_alone(rank: Rank, memory: FakeMemory) -> None:
    rank.discard(("weights",))
    assert "only kv_cache" in rank.error
    assert memory.calls == []


def test_a_step_clears_the_last_error(rank: Rank, memory: FakeMemory) -> None:
    rank.commit(9)
    rank.wake(None)
    assert rank.state().last_error == ""


class AnyOrder(RuleBasedStateMachine):
    """Whatever is called in whatever order, failing or not, the words match the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = FakeMemory()
        self.rank = Rank(0, self.memory)
        self.rank.loaded()
        self.rank.kv_ready()

    @rule(level=st.sampled_from([1, 2]), failing=st.sampled_from(["", "prepare", "release_weights", "release_kv"]))
    def sleep(self, level: int, failing: str) -> None:
        self.memory.failing = failing
        self.rank.sleep(level)
        self.memory.failing = ""

    @rule(
        tags=st.sampled_from([None, ["weights"], ["kv_cache"]]),
        failing=st.sampled_from(["", "", "restore_weights", "restore_kv"]),
    )
    def wake(self, tags: list[str] | None, failing: str) -> None:
        # A device whose restore failed has to be restarted: nothing is asked of it again.
        if self.rank.weights is Weights.PARTIAL or self.rank.kv is KV.UNKNOWN:
            return
        self.memory.failing = failing
        self.rank.wake(tags)
        self.memory.failing = ""
        if failing and self.rank.error:
            self.memory.weights_mapped |= failing == "restore_weights"

    @rule(version=st.integers(1, 4), fails=st.booleans())
    def reload(self, version: int, fails: bool) -> None:
        self.rank.reload(version, fail if fails else load(self.memory))

    @rule(version=st.integers(0, 4))
    def commit(self, version: int) -> None:
        self.rank.commit(version)

    @rule()
    def park(self) -> None:
        self.rank.park()

    @invariant()
    def resident_weights_are_whole(self) -> None:
        if self.rank.weights is Weights.RESIDENT:
            assert self.memory.weights_mapped
            assert self.memory.whole
        if self.rank.weights is Weights.PARKED:
            assert self.memory.copy is not None

    @invariant()
    def kv_is_what_it_says(self) -> None:
        if self.rank.kv is not KV.UNKNOWN:
            assert self.memory.kv_mapped is (self.rank.kv is KV.RESIDENT)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
