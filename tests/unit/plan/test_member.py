"""The ladder of one member, as a table: every phase and goal has a step."""

from __future__ import annotations

import itertools

import pytest
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import Canary, CommitUpdateRequest, Drain, GrantRequest, ResumeRequest, SleepRequest, Verb
from ebbtide_operator.plan.member import Asleep, Do, Done, Leave, Loaded, Need, Serving, Wait, next_step

from tests.support.fake_member import FakeMember

from .sim import put

SERVING, SERVING_7, LOADED_7, ASLEEP = Serving(), Serving(7, "/w/v7"), Loaded(7, "/w/v7"), Asleep()


def state(phase: Phase, **changes: object):
    return put(FakeMember(), phase).vector().model_copy(update=changes)


@pytest.mark.parametrize(
    ("phase", "goal", "verb"),
    [
        (Phase.PENDING_DEVICE, SERVING, Verb.GRANT),
        (Phase.PENDING_DEVICE, LOADED_7, Verb.GRANT),
        (Phase.ASLEEP, SERVING, Verb.WAKE_WEIGHTS),
        (Phase.ASLEEP, LOADED_7, Verb.WAKE_WEIGHTS),
        (Phase.SUSPENDING, SERVING, Verb.WAKE_WEIGHTS),
        (Phase.SUSPENDING, ASLEEP, Verb.SLEEP),
        (Phase.RUNNING, ASLEEP, Verb.SLEEP),
        (Phase.PAUSED, ASLEEP, Verb.SLEEP),
        (Phase.VERIFYING, ASLEEP, Verb.SLEEP),
        (Phase.COMMITTED, ASLEEP, Verb.SLEEP),
        (Phase.WEIGHTS_RESIDENT, ASLEEP, Verb.SLEEP),
        (Phase.UPDATING, ASLEEP, Verb.ABORT_UPDATE),
        (Phase.RUNNING, SERVING_7, Verb.SLEEP),
        (Phase.RUNNING, LOADED_7, Verb.SLEEP),
        (Phase.WEIGHTS_RESIDENT, LOADED_7, Verb.BEGIN_UPDATE),
        (Phase.WEIGHTS_RESIDENT, SERVING_7, Verb.BEGIN_UPDATE),
        (Phase.COMMITTED, LOADED_7, Verb.BEGIN_UPDATE),
        (Phase.VERIFYING, SERVING_7, Verb.BEGIN_UPDATE),
        (Phase.WEIGHTS_RESIDENT, SERVING, Verb.WAKE_KV),
        (Phase.COMMITTED, SERVING, Verb.WAKE_KV),
        (Phase.VERIFYING, SERVING, Verb.RESUME),
        (Phase.PAUSED, SERVING, Verb.RESUME),
        (Phase.UNKNOWN, SERVING, Verb.RECONCILE),
        (Phase.UNKNOWN, ASLEEP, Verb.RECONCILE),
    ],
)
def test_the_verb_of_a_phase_and_a_goal(phase: Phase, goal: Asleep | Loaded | Serving, verb: Verb) -> None:
    step = next_step(state(phase), goal)
    assert isinstance(step, Do)
    assert step.verb is verb


@pytest.mark.parametrize(
    ("phase", "goal"),
    [(Phase.RUNNING, SERVING), (Phase.ASLEEP, ASLEEP), (Phase.PENDING_DEVICE, ASLEEP), (Phase.RUNNING, Serving(7, ""))],
)
def test_a_goal_that_is_reached(phase: Phase, goal: Asleep | Serving) -> None:
    assert next_step(state(phase), goal) == Done()


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING, Phase.FAULTED, Phase.RECOVERING, Phase.WAKING_KV])
@pytest.mark.parametrize("goal", [SERVING, LOADED_7, ASLEEP])
def test_a_member_in_motion_is_waited_for(phase: Phase, goal: Asleep | Loaded | Serving) -> None:
    assert isinstance(next_step(state(phase), goal), Wait)


def test_every_state_has_a_step_and_a_running_operation_is_always_waited_for() -> None:
    goals = (SERVING, SERVING_7, LOADED_7, ASLEEP, Leave("by hand"))
    for phase, weights, kv, goal in itertools.product(Phase, Weights, KV, goals):
        vector = state(phase, weights=weights, kv=kv)
        assert isinstance(next_step(vector, goal), Do | Wait | Done)
        busy = vector.model_copy(update={"operation": "op"})
        assert isinstance(next_step(busy, goal), Done if isinstance(goal, Leave) else Wait)


def test_weights_that_are_not_resident_are_loaded_again_and_never_served() -> None:
    for weights in set(Weights) - {Weights.RESIDENT}:
        step = next_step(state(Phase.WEIGHTS_RESIDENT, weights=weights), SERVING)
        assert isinstance(step, Do)
        assert step.verb is Verb.RELOAD


def test_an_update_is_committed_only_towards_serving_it() -> None:
    updating = state(Phase.UPDATING, pending_version=7)
    assert next_step(updating, LOADED_7) == Done()
    assert next_step(updating, SERVING_7) == Do(Verb.COMMIT_UPDATE, CommitUpdateRequest(version=7), version=7)
    for goal in (SERVING, Serving(8, "/w/v8"), Loaded(8, "/w/v8")):
        step = next_step(updating, goal)
        assert isinstance(step, Do)
        assert step.verb is Verb.ABORT_UPDATE


def test_an_interrupted_load_of_the_models_own_weights_is_begun_again() -> None:
    """Its agent died in a reload: version 0 is pending, and there is no version 0 to commit."""
    step = next_step(state(Phase.UPDATING, pending_version=0), SERVING)
    assert isinstance(step, Do)
    assert step.verb is Verb.ABORT_UPDATE


def test_a_sleep_that_was_not_confirmed_is_asked_for_again() -> None:
    for phase in (Phase.ASLEEP, Phase.PENDING_DEVICE):
        step = next_step(state(phase), Asleep(confirmed=False))
        assert isinstance(step, Do)
        assert step.verb is Verb.SLEEP


def test_loaded_is_reached_by_whoever_committed_it_before() -> None:
    assert next_step(state(Phase.RUNNING, committed_version=7), LOADED_7) == Done()


def test_wakes_name_what_they_take() -> None:
    needs = {
        Phase.PENDING_DEVICE: Need.ALL,
        Phase.ASLEEP: Need.WEIGHTS,
        Phase.COMMITTED: Need.KV,
        Phase.VERIFYING: Need.NOTHING,
        Phase.SUSPENDING: Need.NOTHING,
    }
    for phase, need in needs.items():
        step = next_step(state(phase), SERVING)
        assert isinstance(step, Do)
        assert step.need is need


def test_bodies_carry_what_was_asked() -> None:
    grant = next_step(state(Phase.PENDING_DEVICE, boot=4), SERVING)
    assert isinstance(grant, Do)
    assert grant.body == GrantRequest(boot=4)
    sleep = next_step(state(Phase.RUNNING), Asleep(2, Drain(timeout=5), 0.1, 300))
    assert isinstance(sleep, Do)
    assert sleep.body == SleepRequest(level=2, drain=Drain(timeout=5), settle=0.1, need_mib=300)
    resume = next_step(state(Phase.VERIFYING), Serving(canary=Canary(prompt="x")))
    assert isinstance(resume, Do)
    assert resume.body == ResumeRequest(canary=Canary(prompt="x"))


def test_a_launcher_that_has_not_announced_itself_is_not_granted() -> None:
    assert isinstance(next_step(state(Phase.PENDING_DEVICE, boot=0), SERVING), Wait)


def test_a_running_member_with_a_shut_gate_is_waited_for() -> None:
    assert isinstance(next_step(state(Phase.RUNNING, admission=False), SERVING), Wait)
