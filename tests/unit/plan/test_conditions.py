"""What is said of a server, case by case: the reason for programs, the sentence and the next step for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ebbtide_api.conditions import ConditionStatus, ConditionType
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.plan import Finding, Serve, TrainerView
from ebbtide_operator.plan.conditions import RECONCILING, STALLED

from tests.support.fake_member import error

from .sim import Sim, put


def told(sim: Sim, kind: ConditionType) -> Finding:
    found = {finding.type: finding for finding in sim.act().conditions["chat"]}
    return found[kind]


def ready(sim: Sim) -> tuple[str, str]:
    finding = told(sim, ConditionType.READY)
    return finding.status.value, finding.reason


def lent() -> Sim:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    return sim


def serving() -> Sim:
    return Sim.running()


def asleep() -> Sim:
    sim = Sim.running()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=0)
    sim.settle()
    return sim


def manual() -> Sim:
    sim = Sim.running()
    sim.record = sim.record.model_copy(update={"manual": frozenset({"chat"})})
    return sim


@pytest.mark.parametrize(
    ("given", "reason", "sentence"),
    [
        (serving, "Serving", "2 of 2 replicas serve."),
        (asleep, "Asleep", "Asleep, as asked."),
        (lent, "Lent", "Asleep: the memory is lent to trainer."),
        (manual, "Manual", "Driven step by step; `:reconcile` hands it back."),
    ],
)
def test_ready_means_as_you_asked(given: Callable[[], Sim], reason: str, sentence: str) -> None:
    finding = told(given(), ConditionType.READY)
    assert (finding.status, finding.reason, finding.message) == (ConditionStatus.TRUE, reason, sentence)


def unreachable(sim: Sim) -> None:
    sim.unreachable = {"chat-1"}


def restarting(sim: Sim) -> None:
    sim.members["chat-1"].kill_engine()


def starting(sim: Sim) -> None:
    sim.members["chat-1"].phase = Phase.STARTING


def returning(sim: Sim) -> None:
    put(sim.members["chat-1"], Phase.COMMITTED)


@pytest.mark.parametrize(
    ("happens", "reason", "part"),
    [
        (unreachable, "AgentUnreachable", "chat-1"),
        (restarting, "Restarting", "chat-1"),
        (starting, "Moving", "chat-1: Starting"),
        (returning, "Moving", "chat-1: next is wake-kv"),
    ],
)
def test_on_the_way_to_ready(happens: Callable[[Sim], None], reason: str, part: str) -> None:
    sim = Sim.running()
    happens(sim)
    assert ready(sim) == ("False", reason)
    sim = Sim.running()
    happens(sim)
    moving = told(sim, ConditionType.RECONCILING)
    assert (moving.status, moving.reason) == (ConditionStatus.TRUE, reason)
    assert part in moving.message


def test_between_two_owners() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    assert ready(sim) == ("False", "Lending")
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    sim.reclaim()
    assert ready(sim) == ("False", "Returning")
    sim.settle()
    assert ready(sim) == ("True", "Serving")


def stalled(sim: Sim) -> tuple[str, str]:
    finding = told(sim, ConditionType.STALLED)
    assert finding.status is ConditionStatus.TRUE, finding
    assert told(sim, ConditionType.READY).status is ConditionStatus.FALSE
    assert told(sim, ConditionType.RECONCILING).status is ConditionStatus.FALSE
    return finding.reason, finding.message


def test_stalled_by_a_lost_owner() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.record = sim.record.with_lease(stage=LeaseStage.OWNER_LOST)
    reason, sentence = stalled(sim)
    assert reason == "OwnerLost"
    assert sentence.endswith("End process 77, which holds 700 MiB.")
    sim.trainer = None
    assert "End process" not in stalled(sim)[1]


def test_stalled_by_memory_that_nobody_frees() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.release()
    for _ in range(5):
        sim.step()
    sim.now += 20
    reason, sentence = stalled(sim)
    assert reason == "DeviceNotFree"
    assert "trainer (pid 77) 700 MiB" in sentence
    assert "raise the device's budget" in sentence


def test_stalled_by_a_version_whose_files_are_gone() -> None:
    sim = Sim.running()
    sim.record = sim.record.model_copy(update={"serve": Serve(version=3, source="/gone")})
    sim.members["chat-0"].version = 3
    reason, sentence = stalled(sim)
    assert reason == "VersionBehind"
    assert "chat-1 serves version 0, the group version 3" in sentence


def test_stalled_by_a_step_that_never_has_its_effect() -> None:
    sim = Sim.running()
    put(sim.members["chat-1"], Phase.COMMITTED)
    sim.members["chat-1"].script.fails = {"wake-kv": [ErrorCode.INTERNAL] * 9}
    for _ in range(12):
        sim.step()
    reason, sentence = stalled(sim)
    assert reason == "KeepsFailing"
    assert "chat-1 does not wake-kv: scripted" in sentence
    assert "ebbtide logs chat-1" in sentence


def test_stalled_by_a_step_that_says_done_and_is_not() -> None:
    sim = Sim.running()
    put(sim.members["chat-1"], Phase.COMMITTED)
    sim.members["chat-1"].script.says_done_does_nothing = {"wake-kv"}
    for _ in range(12):
        sim.step()
    assert "it says that it is done, and is not" in stalled(sim)[1]


def test_stalled_by_processes_that_do_not_stay_up() -> None:
    sim = Sim.running()
    world = sim.world()
    members = tuple(replace(member, trouble="its launcher ended 4 times.") for member in world.members)
    from ebbtide_operator.plan import plan

    found = {one.type: one for one in plan(replace(world, members=members), sim.now).conditions["chat"]}
    assert (found[ConditionType.STALLED].reason, found[ConditionType.READY].status) == ("ProcessTrouble", "False")
    assert "chat-0: its launcher ended 4 times." in found[ConditionType.STALLED].message


@pytest.mark.parametrize(
    ("awake", "status", "reason", "sentence"),
    [
        (2, "True", "Serving", "2 of 2 members take requests."),
        (1, "True", "Serving", "1 of 2 members take requests."),
        (0, "False", "NotServing", "0 of 2 members take requests."),
    ],
)
def test_serving_says_whether_requests_are_taken(awake: int, status: str, reason: str, sentence: str) -> None:
    sim = Sim.running()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=awake)
    sim.settle()
    finding = told(sim, ConditionType.SERVING)
    assert (finding.status, finding.reason, finding.message) == (status, reason, sentence)


def test_memory_released_is_measured_or_unknown() -> None:
    sim = Sim.running()
    used = told(sim, ConditionType.MEMORY_RELEASED)
    assert (used.status, used.reason, used.message) == ("False", "InUse", "The members use 700 MiB, measured.")
    sim = lent()
    free = told(sim, ConditionType.MEMORY_RELEASED)
    assert (free.status, free.reason) == ("True", "MeasuredFree")
    sim.unreachable = {"chat-0"}
    assert told(sim, ConditionType.MEMORY_RELEASED).status is ConditionStatus.UNKNOWN


def test_every_check_has_its_own_reason() -> None:
    names = [check.__name__ for check in (*STALLED, *RECONCILING)]
    assert len(names) == len(set(names))
    assert error(ErrorCode.INTERNAL).next_action
