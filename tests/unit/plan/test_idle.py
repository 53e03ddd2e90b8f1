"""Servers that nobody asks: they fall asleep, deeper in time, and a request wakes them once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.conditions import ConditionStatus, ConditionType
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Level, Phase
from ebbtide_api.verbs import LeaseStage, OnDeadline, SleepRequest, Verb
from ebbtide_operator.plan import Call, Finding, Idle, MemberView, World, plan

from .sim import Sim, put

IDLE = Idle(after=60.0, deeper=600.0, hold=5.0)


def idle(seconds: float = 0.0, what: Idle = IDLE) -> Sim:
    sim = Sim.running()
    sim.servers["chat"] = replace(sim.servers["chat"], idle=what)
    for member in sim.members.values():
        member.idle = seconds
    return sim


def asleep(what: Idle = IDLE, seconds: float = 60.0) -> Sim:
    sim = idle(seconds, what)
    sim.until(lambda: sim.phases == {Phase.ASLEEP} and not sim.busy)
    return sim


def calls(sim: Sim) -> list[Call]:
    return [action for action in plan(sim.world(), sim.now).actions if isinstance(action, Call)]


def told(sim: Sim, kind: ConditionType = ConditionType.READY) -> Finding:
    return {one.type: one for one in plan(sim.world(), sim.now).conditions["chat"]}[kind]


def woken(sim: Sim) -> None:
    sim.until(lambda: sim.phases == {Phase.RUNNING} and not sim.busy, 40)


def knock(sim: Sim, name: str = "chat-0") -> None:
    assert not sim.members[name].request()


# Falling asleep


def test_a_server_that_is_asked_serves_and_is_looked_at_when_it_would_be_idle() -> None:
    sim = idle(seconds=20)
    made = plan(sim.world(), sim.now)
    assert made.actions == ()
    assert made.requeue_after == pytest.approx(40)
    assert made.rests == frozenset()


def test_it_sleeps_when_the_last_request_of_every_member_is_long_past() -> None:
    sim = idle(seconds=60)
    sim.members["chat-1"].idle = 59.5
    assert calls(sim) == []
    sim.pass_time(0.5)
    assert [(call.member, call.verb) for call in calls(sim)] == [("chat-0", Verb.SLEEP), ("chat-1", Verb.SLEEP)]
    body = calls(sim)[0].body
    assert isinstance(body, SleepRequest)
    assert (body.level, body.wakes, body.hold) == (0, True, 5.0)
    assert body.drain.on_deadline is OnDeadline.FAIL, "a request that came at the last moment is not aborted"


def test_the_age_of_what_was_heard_counts() -> None:
    sim = idle(seconds=10)
    world = sim.world()

    def heard(at: float) -> World:
        members: list[MemberView] = [replace(member, heard=at) for member in world.members]
        return replace(world, members=tuple(members))

    assert plan(heard(sim.now - 49), sim.now).rests == frozenset()
    assert plan(heard(sim.now - 51), sim.now).rests == {"chat"}
    assert plan(heard(sim.now + 5), sim.now).rests == frozenset(), "a clock of our own does not go back"


@pytest.mark.parametrize("unknown", ["idle", "reach", "start", "manual"])
def test_what_is_not_known_to_be_idle_is_not_put_to_sleep(unknown: str) -> None:
    sim = idle(seconds=1000)
    if unknown == "idle":
        sim.members["chat-1"].idle = None
    elif unknown == "reach":
        sim.unreachable = {"chat-1"}
    elif unknown == "start":
        put(sim.members["chat-1"], Phase.STARTING)
    else:
        sim.record = sim.record.model_copy(update={"manual": frozenset({"chat"})})
    assert plan(sim.world(), sim.now).rests == frozenset()
    assert calls(sim) == []


def test_without_idle_nobody_falls_asleep() -> None:
    sim = idle(seconds=1e6)
    sim.servers["chat"] = replace(sim.servers["chat"], idle=None)
    assert calls(sim) == []
    assert plan(sim.world(), sim.now).requeue_after is None


def test_falling_asleep_and_asleep_it_is_as_asked() -> None:
    sim = idle(seconds=60)
    assert told(sim).reason == "FallingAsleep"
    sim.act()
    assert (told(sim).status, told(sim).reason) == (ConditionStatus.TRUE, "FallingAsleep")
    sim.until(lambda: sim.phases == {Phase.ASLEEP} and not sim.busy)
    ready = told(sim)
    assert (ready.status, ready.reason) == (ConditionStatus.TRUE, "Idle")
    assert ready.message == "Asleep, because nobody asked for 60 s; a request wakes it."
    assert told(sim, ConditionType.SERVING).status is ConditionStatus.FALSE
    assert told(sim, ConditionType.MEMORY_RELEASED).status is ConditionStatus.TRUE
    assert plan(sim.world(), sim.now).why["chat"].settled


def test_a_drain_that_fails_leaves_it_serving_and_is_tried_when_it_is_idle_again() -> None:
    sim = idle(seconds=60)
    sim.members["chat-0"].script.fails = {"sleep": [ErrorCode.DRAIN_DEADLINE]}
    sim.step()
    assert sim.members["chat-0"].phase is Phase.RUNNING
    assert sim.members["chat-0"].idle == 0
    sim.until(lambda: sim.members["chat-1"].phase is Phase.RUNNING)
    sim.longest = 30.0
    sim.until(lambda: sim.phases == {Phase.ASLEEP}, 400)


# Deeper


def test_it_sleeps_deeper_in_time_and_stays_there() -> None:
    sim = asleep()
    assert {member.level for member in sim.members.values()} == {Level.PARKED}
    made = plan(sim.world(), sim.now)
    assert made.actions == ()
    assert made.requeue_after == pytest.approx(600 - (sim.members["chat-0"].idle or 0))
    sim.pass_time(made.requeue_after or 0)
    sim.until(lambda: {member.level for member in sim.members.values()} == {Level.DISCARDED} and not sim.busy)
    assert told(sim).reason == "Idle"
    assert plan(sim.world(), sim.now).actions == ()
    assert plan(sim.world(), sim.now).requeue_after is None


def test_a_request_on_the_way_deeper_wakes_it() -> None:
    sim = asleep()
    sim.pass_time(600)
    sim.act()
    sim.pass_time(0.1)
    assert sim.phases == {Phase.WEIGHTS_RESIDENT}
    knock(sim)
    woken(sim)
    assert sim.members["chat-0"].calls.count("sleep") == 1


def test_weights_that_cannot_be_discarded_stay_parked() -> None:
    sim = asleep()
    for member in sim.members.values():
        member.script.fails = {"sleep": [ErrorCode.LEVEL_UNSUPPORTED]}
    sim.pass_time(600)
    sim.until(lambda: "wake-weights" in sim.members["chat-0"].calls and sim.phases == {Phase.ASLEEP})
    sim.settle()
    assert {member.level for member in sim.members.values()} == {Level.PARKED}
    before = list(sim.members["chat-0"].calls)
    sim.longest = 30.0
    for _ in range(20):
        sim.step()
    assert sim.members["chat-0"].calls == before, "it is not tried again and again"


def test_deeper_waits_for_memory_that_others_use() -> None:
    sim = asleep()
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=250)
    sim.pass_time(600)
    sim.act()
    assert sim.phases == {Phase.ASLEEP}
    assert "wake-weights" not in sim.members["chat-0"].calls


# Waking


def test_many_requests_wake_every_member_once() -> None:
    sim = asleep()
    for _ in range(100):
        knock(sim, "chat-1")
    assert not plan(sim.world(), sim.now).rests
    woken(sim)
    for member in sim.members.values():
        assert member.calls == ["sleep", "wake-weights", "wake-kv", "resume"]
        assert not member.requested
    assert told(sim).reason == "Serving"


def test_a_request_that_comes_while_it_falls_asleep_wakes_it() -> None:
    sim = idle(seconds=60)
    sim.act()
    assert sim.phases == {Phase.DRAINING}
    knock(sim)
    woken(sim)
    assert sim.members["chat-0"].calls == ["sleep", "wake-weights", "wake-kv", "resume"]


def test_what_no_request_wakes_is_not_told_of_any() -> None:
    sim = asleep(Idle(after=60.0, wakes=False, hold=5.0))
    assert not any(member.wakes or member.hold for member in sim.members.values())
    knock(sim)
    sim.settle()
    assert sim.phases == {Phase.ASLEEP}
    assert told(sim).message.endswith("no request wakes it.")


def test_it_falls_asleep_and_wakes_as_often_as_needed() -> None:
    """Each time is another call: a key that was used before would get the answer of that time, and no effect."""
    sim = idle(seconds=60)
    for _ in range(30):
        sim.until(lambda: sim.phases == {Phase.ASLEEP} and not sim.busy, 20)
        assert told(sim, ConditionType.STALLED).status is ConditionStatus.FALSE
        knock(sim)
        woken(sim)
        sim.pass_time(60)
    assert len(sim.members["chat-0"].operations) == 30 * 4


def test_an_engine_that_died_asleep_starts_again_so_that_requests_are_heard() -> None:
    sim = asleep()
    sim.members["chat-0"].kill_engine()
    woken(sim)


# With a lease, with power


def test_a_lent_server_is_woken_by_no_request() -> None:
    sim = asleep()
    sim.acquire()
    sim.step()
    assert sim.stage is LeaseStage.GRANTED
    assert sim.phases == {Phase.ASLEEP}, "a lease alone wakes nobody"
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert not any(member.wakes for member in sim.members.values())
    knock(sim)
    sim.members["chat-0"].requested = True
    sim.step()
    assert (sim.stage, sim.phases) == (LeaseStage.LENT, {Phase.ASLEEP})
    assert calls(sim) == []


def test_a_server_that_comes_back_from_a_lease_serves_and_is_idle_later() -> None:
    sim = asleep()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    sim.reclaim()
    sim.until(lambda: sim.phases == {Phase.RUNNING} and "back-1" in sim.finished)
    assert sim.finished["back-1"].error is None
    assert calls(sim) == []
    sim.pass_time(60)
    assert [call.verb for call in calls(sim)] == [Verb.SLEEP, Verb.SLEEP]


def test_power_asleep_takes_the_waking_away_from_an_idle_sleeper() -> None:
    sim = asleep()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=0)
    assert [call.verb for call in calls(sim)] == [Verb.SLEEP, Verb.SLEEP]
    sim.settle()
    assert not any(member.wakes or member.hold for member in sim.members.values())
    knock(sim)
    sim.members["chat-0"].requested = True
    assert calls(sim) == []
    assert told(sim).reason == "Asleep"


def test_idleness_that_is_no_longer_asked_for_wakes_the_server() -> None:
    sim = asleep()
    sim.servers["chat"] = replace(sim.servers["chat"], idle=None)
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


def test_another_time_to_hold_reaches_who_sleeps() -> None:
    sim = asleep()
    sim.servers["chat"] = replace(sim.servers["chat"], idle=replace(IDLE, hold=9.0))
    sim.step()
    sim.step()
    assert calls(sim) == []
    assert {member.hold for member in sim.members.values()} == {9.0}
    assert sim.phases == {Phase.ASLEEP}
