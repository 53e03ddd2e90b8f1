"""Servers that take turns: one is awake at most, whoever is asked gets its turn, and nobody is sent away at once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from ebbtide_api.conditions import ConditionStatus, ConditionType
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, OnDeadline, SleepRequest, Verb
from ebbtide_operator.plan import Call, Finding, Idle, ServerView, Turns, plan
from ebbtide_operator.plan.world import RELEASED_PHASES

from tests.support.fake_member import BUDGET, FakeMember

from .sim import Sim, put

TURNS = Turns(minimum=10.0, hold=30.0)
NAMES = ("chat", "code", "draw")


def sharing(count: int = 2, phase: Phase = Phase.PENDING_DEVICE, **changes: object) -> Sim:
    sim = Sim(servers={})
    for name in NAMES[:count]:
        fields = {"replicas": 1, "awake": 1, "budget_mib": BUDGET, "turns": TURNS, **changes}
        sim.servers[name] = ServerView(name, **fields)  # type: ignore[arg-type]
        sim.members[f"{name}-0"] = put(FakeMember(name=f"{name}-0", server=name), phase)
    return sim


def started() -> Sim:
    """Both have started once, one after the other; `chat` has the turn, and has had its minimum."""
    sim = sharing(2)
    sim.until(lambda: serves(sim, "code"))
    had_its_minimum(sim)
    knock(sim, "chat")
    sim.until(lambda: serves(sim, "chat"))
    had_its_minimum(sim)
    return sim


def had_its_minimum(sim: Sim) -> None:
    sim.act()  # who serves since when is held from here on
    sim.pass_time(TURNS.minimum)


def awake(sim: Sim) -> list[str]:
    return [member.server for member in sim.members.values() if member.phase not in RELEASED_PHASES]


def serves(sim: Sim, name: str) -> bool:
    return sim.members[f"{name}-0"].phase is Phase.RUNNING and awake(sim) == [name]


def knock(sim: Sim, name: str) -> None:
    assert not sim.members[f"{name}-0"].request()


def told(sim: Sim, name: str, kind: ConditionType = ConditionType.READY) -> Finding:
    return {one.type: one for one in plan(sim.world(), sim.now).conditions[name]}[kind]


def calls(sim: Sim) -> list[tuple[str, Verb]]:
    return [(each.member, each.verb) for each in plan(sim.world(), sim.now).actions if isinstance(each, Call)]


def never_two(sim: Sim, steps: int) -> None:
    for _ in range(steps):
        sim.step()
        assert len(awake(sim)) <= 1, sim.describe()


def test_they_start_one_after_the_other() -> None:
    """No request is heard for an engine that never started: each comes up once, and only one at a time."""
    sim = sharing(3)
    seen: set[str] = set()
    for _ in range(200):
        sim.step()
        assert len(awake(sim)) <= 1, sim.describe()
        seen |= {name for name in NAMES if serves(sim, name)}
    assert seen == {*NAMES}
    assert serves(sim, "draw"), "the last one stays: nobody asks for another"
    assert sim.members["chat-0"].calls.count("grant") == 1


def test_who_serves_alone_is_left_alone() -> None:
    sim = started()
    sim.longest = 60.0
    before = list(sim.log)
    for _ in range(5):
        sim.pass_time(100)
        assert plan(sim.world(), sim.now).actions == ()
    assert sim.log == before
    assert plan(sim.world(), sim.now).requeue_after is None


def test_a_request_for_another_gets_it_the_turn() -> None:
    sim = started()
    knock(sim, "code")
    assert calls(sim) == [("chat-0", Verb.SLEEP)]
    never_two(sim, 40)
    assert serves(sim, "code")
    assert sim.members["chat-0"].calls.count("sleep") == sim.members["code-0"].calls.count("sleep") + 1


def test_a_request_waits_until_the_turn_has_lasted_its_minimum() -> None:
    sim = started()
    knock(sim, "code")
    sim.until(lambda: serves(sim, "code"))
    sim.act()
    knock(sim, "chat")
    made = plan(sim.world(), sim.now)
    assert made.actions == ()
    assert made.requeue_after == pytest.approx(10, abs=1)
    sim.pass_time(9)
    assert calls(sim) == []
    sim.pass_time(1.1)
    assert calls(sim) == [("code-0", Verb.SLEEP)]


def test_requests_for_two_at_once_do_not_thrash() -> None:
    """Both are asked all the time: each serves at least its minimum, and both serve about as often."""
    sim, turns, serving = started(), [], ""
    began = sim.now
    while sim.now < began + 200:
        sim.step()
        assert len(awake(sim)) <= 1
        for name in NAMES[:2]:
            if sim.members[f"{name}-0"].phase is Phase.ASLEEP:
                knock(sim, name)
            elif serves(sim, name) and serving != name:
                serving = name
                turns.append((name, sim.now))
    turns = turns[1:]  # the first of them had served long before
    gaps = [later - sooner for (_, sooner), (_, later) in itertools.pairwise(turns)]
    assert len(turns) > 10
    assert min(gaps) >= TURNS.minimum
    assert abs([name for name, _ in turns].count("chat") - [name for name, _ in turns].count("code")) <= 1


def test_who_waited_longest_is_next() -> None:
    sim = sharing(3)
    sim.until(lambda: serves(sim, "draw"), 400)
    sim.act()
    knock(sim, "code")
    sim.act()
    sim.pass_time(1)
    knock(sim, "chat")
    sim.until(lambda: serves(sim, "code"))
    never_two(sim, 60)
    assert serves(sim, "chat")


def test_it_is_drained_as_its_spec_says_and_told_to_wake_by_requests() -> None:
    sim = started()
    knock(sim, "code")
    (call,) = (each for each in plan(sim.world(), sim.now).actions if isinstance(each, Call))
    assert isinstance(call.body, SleepRequest)
    assert (call.body.wakes, call.body.hold) == (True, 30.0)
    assert call.body.drain.on_deadline is OnDeadline.ABORT, "a stream without end does not keep the others out"


def test_the_others_are_as_asked_meanwhile() -> None:
    sim = started()
    ready = told(sim, "code")
    assert (ready.status, ready.reason) == (ConditionStatus.TRUE, "OthersTurn")
    assert ready.message == "Asleep: chat has the device now, and a request asks for it."
    assert told(sim, "chat").reason == "Serving"
    knock(sim, "code")
    assert (told(sim, "chat").status, told(sim, "chat").reason) == (ConditionStatus.TRUE, "Yielding")


def test_a_turn_is_not_over_before_it_began() -> None:
    """An engine that takes longer to start than a turn lasts serves all the same."""
    sim = started()
    sim.members["code-0"].kill_engine()
    sim.pass_time(0.1)
    sim.until(lambda: "code" in awake(sim))
    knock(sim, "chat")
    sim.pass_time(100)
    sim.until(lambda: serves(sim, "code"))


def test_one_that_died_in_its_turn_gives_it_away_to_who_is_asked() -> None:
    sim = started()
    knock(sim, "code")
    sim.members["chat-0"].kill_engine()
    sim.until(lambda: serves(sim, "code"))
    never_two(sim, 60)
    assert serves(sim, "chat"), "it must start again, and does when the other's minimum is over"


def test_idle_turns_end_asleep_and_any_request_wakes_its_own() -> None:
    sim = started()
    for name in NAMES[:2]:
        sim.servers[name] = replace(sim.servers[name], idle=Idle(after=60.0))
        sim.members[f"{name}-0"].idle = 100.0
    sim.until(lambda: awake(sim) == [])
    sim.settle()
    knock(sim, "code")
    sim.until(lambda: serves(sim, "code"))


def test_one_alone_or_put_to_sleep_takes_no_turns() -> None:
    sim = started()
    sim.servers["chat"] = replace(sim.servers["chat"], awake=0)
    never_two(sim, 40)
    assert serves(sim, "code")
    assert told(sim, "chat").reason == "Asleep"
    sim.members["chat-0"].requested = True
    assert calls(sim) == []


def test_others_of_the_group_are_awake_besides() -> None:
    sim = started()
    sim.servers["aside"] = ServerView("aside", budget_mib=0, device="cpu1")
    sim.members["aside-0"] = put(FakeMember(name="aside-0", server="aside"), Phase.RUNNING)
    knock(sim, "code")
    sim.until(lambda: awake(sim) == ["code", "aside"])


def test_a_lease_that_was_there_before_has_its_way() -> None:
    sim = started()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert not any(member.wakes for member in sim.members.values())
    assert plan(sim.world(), sim.now).actions == ()


def test_an_agent_that_is_silent_keeps_the_turn_only_while_it_may_hold_memory() -> None:
    sim = started()
    sim.unreachable = {"code-0"}
    assert calls(sim) == [], "it slept when it was last heard"
    sim.unreachable = {"chat-0"}
    knock(sim, "code")
    sim.pass_time(100)
    assert calls(sim) == [], "nobody has measured what it holds"
