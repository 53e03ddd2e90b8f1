"""A group's way out and back, as plans carry it out on fake members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import DeviceRelease, LeaseStage, LendResult, OperationStatus, ReclaimResult
from ebbtide_operator.plan import ENGINE, TrainerView
from ebbtide_operator.plan.results import lend_result

from tests.support.fake_member import BUDGET, Script, error

from .sim import Sim


def lent(**changes: object) -> Sim:
    sim = Sim.running(**changes)
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    return sim


def test_a_group_starts_serves_and_then_there_is_nothing_to_do() -> None:
    sim = Sim()
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert sim.act().actions == ()


def test_a_lend_puts_every_member_to_sleep_and_then_changes_the_owner_once() -> None:
    sim = lent()
    assert sim.phases == {Phase.ASLEEP}
    assert sim.record.owner == "trainer"
    assert [record.owner for record in sim.saves].count(ENGINE) == len(sim.saves) - 1
    result = sim.finished["lend-1"].result
    assert isinstance(result, LendResult)
    assert result.epoch == sim.record.epoch == 2
    assert [device.freed_mib for device in result.devices] == [500.0]
    assert result.devices[0].residual_mib == 200.0
    assert result.devices[0].free_mib == BUDGET - 200
    assert {member.member for member in result.members} == {"chat-0", "chat-1"}


@pytest.mark.parametrize("answers_kept", [True, False])
def test_nothing_is_told_to_be_free_of_a_device_whose_size_nobody_knows(answers_kept: bool) -> None:
    """Not 0, which would be a device that is full."""
    sim = lent()
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=0)
    if not answers_kept:
        sim.outcomes.clear()
    result = lend_result(sim.world())
    assert [device.free_mib for device in result.devices] == [None]
    told = result.wire()["devices"]
    assert told == [{"id": "cpu0", "freedMiB": 500.0 if answers_kept else 0.0, "residualMiB": 200.0}]
    assert LendResult.model_validate({**result.wire(), "devices": told}) == result


def test_a_member_that_sleeps_already_tells_no_free_memory_of_a_device_of_unknown_size() -> None:
    sim = lent()
    sim.outcomes.clear()
    world = sim.world()
    unknown = [replace(view, state=sizeless(view.state)) for view in world.members if view.state]
    (first, _) = lend_result(replace(world, members=tuple(unknown))).members
    assert first.result.devices == [DeviceRelease(id="cpu0", freed_mib=0, residual_mib=100)]


def sizeless(state: StateVector) -> StateVector:
    """Return a state as an agent tells it that was given no size of its device."""
    devices = [device.model_copy(update={"free_mib": 0.0, "total_mib": 0.0}) for device in state.devices]
    return state.model_copy(update={"devices": devices})


def test_an_answer_is_given_only_after_the_new_owner_is_durable() -> None:
    sim = lent()
    assert sim.log.index("Finish") > max(index for index, what in enumerate(sim.log) if what == "Save")


def test_a_lend_whose_answer_was_lost_in_a_crash_is_answered_from_the_record() -> None:
    sim = lent()
    sim.started["lend-1"] = sim.now
    del sim.finished["lend-1"]
    sim.outcomes.clear()
    sim.step()
    result = sim.finished["lend-1"].result
    assert isinstance(result, LendResult)
    assert result.devices[0].residual_mib == 200.0


def test_the_whole_way_back_with_a_version() -> None:
    sim = lent()
    sim.reclaim(version=7, source="/w/v7")
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert {member.version for member in sim.members.values()} == {7}
    assert sim.record.owner == ENGINE
    assert sim.record.epoch == 3
    assert sim.record.lease is None
    result = sim.finished["back-1"].result
    assert isinstance(result, ReclaimResult)
    assert (result.epoch, result.weight_version) == (3, 7)
    assert all(member.result.canary and member.result.canary.ok for member in result.members)
    order = [what.split(":")[1] for what in sim.log if what.startswith("chat-0:")]
    assert order == ["sleep", "wake-weights", "begin-update", "commit-update", "wake-kv", "resume"]
    assert sim.log[-1] == "Retire"


def test_no_member_commits_before_every_member_has_loaded() -> None:
    sim = lent()
    sim.reclaim(version=7)
    sim.settle()
    begins = [index for index, what in enumerate(sim.log) if what.endswith("begin-update")]
    commits = [index for index, what in enumerate(sim.log) if what.endswith("commit-update")]
    assert max(begins) < min(commits)
    decided = next(index for index, record in enumerate(sim.saves) if record.serve.version == 7)
    assert sim.saves[decided - 1].serve.version == 0


def test_the_way_back_without_a_version_loads_nothing() -> None:
    sim = lent()
    sim.reclaim()
    sim.settle()
    assert not any("update" in what for what in sim.log)
    assert {member.version for member in sim.members.values()} == {0}


@pytest.mark.parametrize("bad", ["chat-0", "chat-1"])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.RELEASE_INCOMPLETE,
        ErrorCode.DRAIN_DEADLINE,
        ErrorCode.HOST_MEMORY_INSUFFICIENT,
        ErrorCode.ENGINE_FAULTED,
    ],
)
def test_a_lend_that_fails_for_one_member_brings_the_others_back(bad: str, code: ErrorCode) -> None:
    sim = Sim.running()
    sim.members[bad].script.fails = {"sleep": [code]}
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: "lend-1" in sim.finished)
    failure = sim.finished["lend-1"].error
    assert failure is not None
    assert failure.code is code
    assert failure.details["member"] == bad
    assert bad in failure.message
    assert {record.owner for record in sim.saves} == {ENGINE}
    assert sim.record.epoch == 2
    assert sim.stage is LeaseStage.GRANTED
    sim.until(lambda: sim.phases == {Phase.RUNNING})
    sim.lend("lend-2")
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert sim.finished["lend-2"].error is None


def test_an_engine_that_frees_nothing_never_lends() -> None:
    sim = Sim.running()
    sim.members["chat-1"].script = Script(frees_nothing=True)
    sim.acquire()
    sim.step()
    for attempt in ("lend-1", "lend-2"):
        sim.lend(attempt)
        sim.until(lambda attempt=attempt: attempt in sim.finished)
        assert sim.finished[attempt].error.code is ErrorCode.RELEASE_INCOMPLETE
    assert {record.owner for record in sim.saves} == {ENGINE}


def test_an_engine_that_says_done_and_still_serves_does_not_change_the_owner() -> None:
    sim = Sim.running()
    sim.members["chat-1"].script = Script(says_done_does_nothing={"sleep"})
    sim.acquire()
    sim.step()
    sim.lend(deadline=20.0)
    sim.until(lambda: "lend-1" in sim.finished, steps=900)
    assert sim.finished["lend-1"].error.code is ErrorCode.PHASE_DEADLINE
    assert {record.owner for record in sim.saves} == {ENGINE}


def test_a_member_that_is_not_started_holds_nothing_and_is_lent_with_the_others() -> None:
    sim = Sim.running()
    sim.members["chat-1"].kill_engine()
    sim.members["chat-1"].relaunch()
    sim.acquire()
    sim.lend_record = None
    sim.act()
    sim.members["chat-1"].phase, sim.members["chat-1"].current = Phase.PENDING_DEVICE, None
    sim.busy.clear()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert sim.members["chat-1"].phase is Phase.PENDING_DEVICE


def test_an_engine_that_dies_while_its_memory_is_lent_waits_for_its_turn() -> None:
    sim = lent()
    sim.members["chat-0"].kill_engine()
    for _ in range(20):
        sim.step()
    assert sim.members["chat-0"].phase is Phase.PENDING_DEVICE
    assert "chat-0:grant" not in sim.log
    sim.reclaim()
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert "chat-0:grant" in sim.log


@pytest.mark.parametrize("bad", ["chat-0", "chat-1"])
def test_a_version_that_one_member_refuses_serves_on_none(bad: str) -> None:
    sim = lent()
    sim.members[bad].published = lambda path, version: error(
        ErrorCode.MANIFEST_INVALID, reason="SHAPE_MISMATCH", tensor="lm_head.weight"
    )
    sim.reclaim(version=1)
    sim.settle()
    answer = sim.finished["back-1"]
    assert answer.error.code is ErrorCode.MANIFEST_INVALID
    assert answer.error.details == {"reason": "SHAPE_MISMATCH", "tensor": "lm_head.weight", "member": bad}
    assert isinstance(answer.result, ReclaimResult)
    assert answer.result.weight_version == 0
    assert sim.phases == {Phase.RUNNING}
    assert {member.version for member in sim.members.values()} == {0}
    assert sim.record.serve.version == 0
    assert not any(what.endswith("commit-update") for what in sim.log)


def test_after_the_decision_a_dying_engine_is_brought_to_the_new_version() -> None:
    sim = lent()
    sim.members["chat-1"].script.dies_in = {"commit-update"}
    sim.reclaim(version=3)
    sim.settle()
    assert {member.version for member in sim.members.values()} == {3}
    assert sim.finished["back-1"].error is None


def test_before_the_decision_a_dying_engine_takes_the_version_down() -> None:
    sim = lent()
    sim.members["chat-1"].script.dies_in = {"begin-update"}
    sim.reclaim(version=3)
    sim.settle()
    assert sim.finished["back-1"].error.code is ErrorCode.ENGINE_FAULTED
    assert {member.version for member in sim.members.values()} == {0}
    assert sim.phases == {Phase.RUNNING}


def test_a_wrong_canary_keeps_the_gate_shut_and_fails_the_way_back() -> None:
    sim = lent()
    sim.members["chat-0"].script.fails = {"resume": [ErrorCode.CANARY_FAILED] * 3}
    sim.reclaim(version=3)
    sim.until(lambda: "back-1" in sim.finished)
    assert sim.finished["back-1"].error.code is ErrorCode.CANARY_FAILED
    assert sim.record.lease is None
    made = sim.step()
    assert sim.members["chat-0"].phase is Phase.VERIFYING
    ready, _, stalled, serving, _ = made.conditions["chat"]
    assert (ready.status, stalled.status, stalled.reason) == ("False", "True", "CanaryFailed")
    assert serving.message == "1 of 2 members take requests."


def test_a_trainer_that_keeps_its_memory_fails_the_way_back_and_nothing_is_touched() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.reclaim(version=3)
    sim.until(lambda: "back-1" in sim.finished, steps=400)
    failure = sim.finished["back-1"].error
    assert failure.code is ErrorCode.DEVICE_NOT_FREE
    assert failure.details["device"] == "cpu0"
    assert failure.details["usedMiB"] == 900
    assert failure.details["allowedMiB"] == 600
    assert {"name": "trainer (pid 77)", "mib": 700} in failure.details["holders"]
    assert sim.phases == {Phase.ASLEEP}
    assert (sim.stage, sim.record.owner) == (LeaseStage.LENT, "trainer")
    assert sim.now - 1000 > 15
    sim.trainer = TrainerView(77, alive=True, used_mib=10)
    sim.reclaim("back-2", version=3)
    sim.settle()
    assert {member.version for member in sim.members.values()} == {3}


def test_memory_that_comes_free_in_time_is_waited_for() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.reclaim()
    for _ in range(20):
        sim.step()
    assert sim.phases == {Phase.ASLEEP}
    sim.trainer = TrainerView(77, alive=True, used_mib=10)
    sim.settle()
    assert sim.finished["back-1"].error is None


def test_kv_waits_for_the_second_half_of_the_trainers_memory() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=360)
    sim.reclaim(version=3)
    for _ in range(40):
        sim.step()
    assert sim.phases == {Phase.COMMITTED}
    sim.until(lambda: "back-1" in sim.finished, steps=400)
    assert sim.finished["back-1"].error.code is ErrorCode.DEVICE_NOT_FREE
    assert sim.stage is LeaseStage.RETURNING
    sim.reclaim("back-2", version=None)
    sim.trainer = None
    sim.settle()
    assert sim.finished["back-2"].error is None
    assert {member.version for member in sim.members.values()} == {3}


def test_the_need_of_a_lease_is_checked_for_the_whole_device() -> None:
    sim = Sim.running()
    sim.acquire(need_mib=BUDGET - 150)
    sim.step()
    sim.lend()
    sim.until(lambda: "lend-1" in sim.finished, steps=400)
    assert sim.finished["lend-1"].error.code is ErrorCode.DEVICE_NOT_FREE
    assert {record.owner for record in sim.saves} == {ENGINE}


def test_a_failed_lend_is_answered_even_if_a_member_cannot_come_back() -> None:
    sim = Sim.running()
    sim.members["chat-0"].script.fails = {"sleep": [ErrorCode.DRAIN_DEADLINE]}
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: "lend-1" in sim.finished, steps=1500)
    assert sim.finished["lend-1"].error.code is ErrorCode.DRAIN_DEADLINE
    assert sim.members["chat-1"].phase is Phase.ASLEEP
    made = sim.step()
    assert made.conditions["chat"][2].reason == "DeviceNotFree"


def test_a_lend_that_takes_too_long_names_who_it_waits_for() -> None:
    sim = Sim.running()
    sim.unreachable = {"chat-1"}
    sim.acquire()
    sim.step()
    sim.lend(deadline=5.0)
    sim.until(lambda: "lend-1" in sim.finished, steps=300)
    failure = sim.finished["lend-1"].error
    assert failure.code is ErrorCode.PHASE_DEADLINE
    assert "chat-1 does not answer" in failure.message
    assert sim.stage is LeaseStage.GRANTED


def test_a_way_back_that_takes_too_long_gives_up_the_version_first() -> None:
    sim = lent()
    sim.unreachable = {"chat-1"}
    sim.reclaim(version=3, deadline=5.0)
    sim.until(lambda: sim.record.lease is None, steps=600)
    failure = sim.finished["back-1"].error
    assert failure.code is ErrorCode.PHASE_DEADLINE
    sim.unreachable = set()
    sim.settle()
    assert {member.version for member in sim.members.values()} == {0}


def test_members_that_shall_sleep_take_the_version_and_sleep_again() -> None:
    sim = lent()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=1)
    sim.reclaim(version=3)
    sim.settle()
    assert sim.members["chat-0"].phase is Phase.RUNNING
    assert sim.members["chat-1"].phase is Phase.ASLEEP
    assert {member.version for member in sim.members.values()} == {3}


def test_a_verb_that_fails_once_is_tried_again() -> None:
    sim = lent()
    sim.members["chat-0"].script.fails = {"wake-kv": [ErrorCode.INTERNAL, ErrorCode.OPERATION_IN_PROGRESS]}
    sim.reclaim()
    sim.settle()
    assert sim.finished["back-1"].error is None
    assert sim.log.count("chat-0:wake-kv") == 3


def test_results_carry_the_time_of_the_slowest_member_in_each_phase() -> None:
    sim = lent()
    result = sim.finished["lend-1"].result
    assert isinstance(result, LendResult)
    assert [(timing.phase, timing.ms) for timing in result.phases] == [(Phase.DRAINING, 1.0)]
    assert OperationStatus.DONE == "Done"
