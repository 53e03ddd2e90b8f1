"""Why a server is as it is: what is wanted, everything in the way, and what each member does next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.plan import Explanation, Obstacle, Serve, TrainerView, plan

from .sim import Sim, put
from .test_conditions import asleep, lent, manual, serving


def why(sim: Sim) -> Explanation:
    return plan(sim.world(), sim.now).why["chat"]


def only(sim: Sim) -> Obstacle:
    (obstacle,) = why(sim).obstacles
    return obstacle


@pytest.mark.parametrize(
    ("given", "wants"),
    [
        (serving, "2 of 2 replicas serve."),
        (asleep, "Asleep, as asked."),
        (lent, "Asleep: the memory is lent to trainer."),
        (manual, "Driven step by step; `:reconcile` hands it back."),
    ],
)
def test_a_server_that_is_as_asked_has_nothing_in_its_way(given: object, wants: str) -> None:
    assert callable(given)
    found = why(given())
    assert (found.settled, found.wants, found.obstacles) == (True, wants, ())
    assert [aim.next for aim in found.aims] == ["nothing", "nothing"]


def test_a_lend_on_its_way_needs_nobody() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    found = why(sim)
    assert found.wants == "Every member of group actor shall sleep, measured, so that trainer can have the memory."
    assert (found.settled, found.obstacles) == (False, ())
    assert [(aim.member, aim.wants, aim.next) for aim in found.aims] == [
        ("chat-0", "sleep", "sleep"),
        ("chat-1", "sleep", "sleep"),
    ]
    sim.act()
    assert [aim.next for aim in why(sim).aims] == ["sleep is under way"] * 2


def test_the_way_back_names_the_version() -> None:
    sim = lent()
    sim.reclaim(version=3)
    found = why(sim)
    assert found.wants == "2 of 2 members shall serve version 3 of the weights."
    assert found.aims[0].wants == "load version 3"
    sim.settle()
    assert why(sim).aims[0].wants == "serve version 3"


def test_a_trainer_that_needs_more_than_is_free_is_named_at_once() -> None:
    sim = Sim.running()
    sim.acquire(need_mib=2000)
    sim.step()
    sim.lend()
    sim.until(lambda: sim.phases == {Phase.ASLEEP} and not sim.busy)
    obstacle = only(sim)
    assert (obstacle.subject, obstacle.reason) == ("trainer", "WaitsForMemory")
    assert "2000 MiB of cpu0 must be free" in obstacle.sentence
    assert obstacle.advice.startswith("Free memory on the device")


def test_a_failed_lend_says_why_it_is_undone() -> None:
    sim = Sim.running()
    sim.members["chat-1"].script.fails = {"sleep": [ErrorCode.DRAIN_DEADLINE]}
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: bool(sim.record.lease and sim.record.lease.lend and sim.record.lease.lend.failure))
    found = why(sim)
    assert found.wants == "The lend to trainer failed: every member of group actor shall serve again."
    assert [one.reason for one in found.obstacles] == ["LendFailed"]
    assert "chat-1: scripted" in found.obstacles[0].sentence


def test_memory_that_is_held_is_told_once_before_and_after_it_stalls() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.release()
    for _ in range(5):
        sim.step()
    early = only(sim)
    assert (early.reason, early.subject) == ("WaitsForMemory", "actor")
    assert "trainer (pid 77) 700 MiB" in early.sentence
    sim.now += 20
    late = only(sim)
    assert (late.reason, late.advice) == ("DeviceNotFree", "Free it, or raise the device's budget.")


def test_a_lost_owner_says_which_process_to_end() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.record = sim.record.with_lease(stage=LeaseStage.OWNER_LOST)
    found = why(sim)
    assert found.wants.startswith("The engine shall have the devices of group actor again")
    assert found.obstacles[0].advice == "End process 77, which holds 700 MiB."
    assert found.aims[0].wants == "be left alone: the owner of its device was lost"


def test_every_obstacle_is_told_not_only_the_first() -> None:
    sim = Sim.running()
    sim.record = sim.record.model_copy(update={"serve": Serve(version=3, source="/gone")})
    sim.members["chat-0"].version = 3
    sim.unreachable = {"chat-0"}
    found = why(sim)
    assert [(one.subject, one.reason) for one in found.obstacles] == [
        ("chat-1", "VersionBehind"),
        ("chat", "AgentUnreachable"),
    ]
    assert found.aims[0].next == "nothing before its agent answers"
    assert "ebbtide logs chat-0 --agent" in found.aims[0].advice


def test_a_step_that_fails_is_told_with_its_error_and_when_it_is_tried_again() -> None:
    sim = Sim.running()
    put(sim.members["chat-1"], Phase.COMMITTED)
    sim.members["chat-1"].script.fails = {"wake-kv": [ErrorCode.HOST_MEMORY_INSUFFICIENT] * 9}
    sim.step()
    sim.act()
    failed = only(sim)
    assert (failed.subject, failed.reason) == ("chat-1", "StepFailed")
    assert "wake-kv of chat-1 was answered HOST_MEMORY_INSUFFICIENT 1 time: scripted" in failed.sentence
    assert failed.advice
    assert why(sim).aims[1].next.startswith("wake-kv, again in 2 s")
    for _ in range(40):
        sim.step()
    (stalled,) = why(sim).obstacles
    assert (stalled.subject, stalled.reason) == ("chat-1", "KeepsFailing"), "the same fault is not told twice"


def test_a_restart_passes_by_itself() -> None:
    sim = Sim.running()
    sim.members["chat-1"].kill_engine()
    restarting = only(sim)
    assert (restarting.reason, restarting.advice) == ("Restarting", "")
    assert why(sim).aims[1].next == "wait: Recovering: the engine restarts"


def test_a_server_of_which_some_shall_sleep() -> None:
    sim = Sim.running()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=0)
    found = why(sim)
    assert found.wants == "Every member shall sleep: `power: Asleep` asks for it."
    assert [aim.wants for aim in found.aims] == ["sleep", "sleep"]
