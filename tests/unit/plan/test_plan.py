"""What a plan holds besides calls: processes, progress, when to look again; and the arithmetic of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import LeaseStage, Verb
from ebbtide_operator.plan import (
    Call,
    EndMember,
    EnsureMember,
    GroupRecord,
    MemberView,
    Outcome,
    ServerView,
    TrainerView,
    World,
    plan,
)
from ebbtide_operator.plan.group import backoff, moves
from ebbtide_operator.plan.keys import answers_to, attempt_key, base, instance, scope, verb_of
from ebbtide_operator.plan.member import Need
from ebbtide_operator.plan.memory import devices, lacking, need_of, reserved
from ebbtide_operator.plan.plan import MEMORY_POLL
from ebbtide_operator.plan.record import LeaseRecord, Size

from tests.support.fake_member import FakeMember, error

from .sim import Sim, put

# processes


def test_members_that_are_wanted_are_run_and_others_are_ended() -> None:
    sim = Sim()
    sim.members = {"chat-0": put(FakeMember(), Phase.RUNNING), "chat-7": put(FakeMember(name="chat-7"), Phase.RUNNING)}
    assert set(sim.act().actions) == {EnsureMember("chat-1", "chat", 1), EndMember("chat-7")}


@pytest.mark.parametrize("stage", [None, *LeaseStage])
def test_a_new_spec_restarts_members_but_not_while_their_memory_is_lent(stage: LeaseStage | None) -> None:
    sim = Sim.running(1)
    if stage in {LeaseStage.GRANTED, LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING}:
        sim.acquire()
        sim.step()
    if stage in {LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING}:
        sim.lend()
    if stage in {LeaseStage.LENT, LeaseStage.RETURNING}:
        sim.until(lambda: sim.stage is LeaseStage.LENT)
    if stage is LeaseStage.RETURNING:
        sim.reclaim()
    world = sim.world()
    members = tuple(replace(member, outdated=True) for member in world.members)
    ensured = [a for a in plan(replace(world, members=members), sim.now).actions if isinstance(a, EnsureMember)]
    frozen = stage in {LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING}
    assert bool(ensured) is not frozen


def test_a_group_without_servers_has_nothing_to_do() -> None:
    assert plan(World(record=GroupRecord(group="actor")), 0.0).actions == ()


# when to look again


def test_an_idle_group_is_not_looked_at_again() -> None:
    assert Sim.running().act().requeue_after is None


def test_a_lease_is_looked_at_when_it_expires() -> None:
    sim = Sim.running()
    sim.acquire(ttl=30)
    sim.act()
    sim.now += 10
    assert sim.act().requeue_after == pytest.approx(20)
    sim.acquire("b", ttl=5)
    assert sim.act().requeue_after == pytest.approx(5)


def test_memory_that_somebody_shall_free_is_looked_at_often() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    sim.trainer = TrainerView(7, alive=True, used_mib=700)
    sim.reclaim()
    made = sim.act()
    assert made.requeue_after == MEMORY_POLL
    assert made.holds == {"memory:weights", "return"}


def test_a_failed_call_is_looked_at_when_its_wait_is_over() -> None:
    sim = Sim.running()
    put(sim.members["chat-1"], Phase.COMMITTED)
    sim.members["chat-1"].script.fails = {"wake-kv": [ErrorCode.INTERNAL] * 9}
    sim.step()
    made = sim.act()
    assert not [action for action in made.actions if isinstance(action, Call)]
    assert made.requeue_after == pytest.approx(0.1, abs=0.06)


def outcomes(count: int, code: ErrorCode | None) -> tuple[Outcome, ...]:
    return tuple(Outcome("b", float(n), error=error(code) if code else None) for n in range(count))


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        (None, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]),
        (ErrorCode.OPERATION_IN_PROGRESS, [0.1, 0.2, 0.4]),
        (ErrorCode.MANIFEST_INVALID, [2.0, 4.0, 8.0, 16.0, 32.0, 60.0]),
        (ErrorCode.CANARY_FAILED, [60.0, 60.0]),
    ],
)
def test_waits_between_attempts(code: ErrorCode | None, waits: list[float]) -> None:
    assert [backoff(outcomes(count + 1, code)) for count in range(len(waits))] == pytest.approx(waits)


# progress


def test_progress_names_how_many_and_the_slowest_phase() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.act()
    made = sim.act()
    progress = made.progress["lend-1"]
    assert progress.text == "0 of 2 members measured asleep"
    assert progress.phase is Phase.DRAINING
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert sim.act().progress == {}
    sim.trainer = TrainerView(7, alive=True, used_mib=700)
    sim.reclaim()
    waiting = sim.act().progress["back-1"]
    assert waiting.text.startswith("0 of 2 members ready; waiting for memory: 400 MiB of cpu0 must be free")
    assert waiting.phase is Phase.ASLEEP


# keys


def view(**state: object) -> MemberView:
    vector = put(FakeMember(), Phase.RUNNING).vector().model_copy(update=state)
    return MemberView("chat-0", "chat", 0, state=vector)


def test_the_same_intent_gives_the_same_key_and_another_launch_another() -> None:
    assert base(Verb.SLEEP, "op/lend", 1) == base(Verb.SLEEP, "op/lend", 1)
    different = {
        base(Verb.SLEEP, "op/lend", 1),
        base(Verb.SLEEP, "op/lend", 2),
        base(Verb.SLEEP, "op/undo", 1),
        base(Verb.WAKE_KV, "op/lend", 1),
        base(Verb.SLEEP, "op/lend", 1, 7),
    }
    assert len(different) == 5
    assert all(len(key) < 100 for key in different)


def test_a_key_says_its_verb() -> None:
    for verb in Verb:
        assert verb_of(base(verb, "x/-b-v", 12, 3)) == verb.value


def test_attempts_are_counted_by_answers_alone() -> None:
    member, call = view(), base(Verb.SLEEP, "op", 1)
    assert attempt_key(call, member) == f"{call}-0"
    answered = replace(member, outcomes=(Outcome(call, 1.0), Outcome(base(Verb.SLEEP, "op", 2), 2.0)))
    assert attempt_key(call, answered) == f"{call}-1"
    assert len(answers_to(answered, Verb.SLEEP, "op")) == 2
    assert answers_to(answered, Verb.SLEEP, "op", 7) == ()
    assert answers_to(answered, Verb.SLEEP, "other") == ()


def test_an_instance_is_uid_pid_and_start() -> None:
    state = view().state
    assert state is not None
    assert instance(state) == "uid:0:1"


def test_every_intent_has_a_scope_of_its_own() -> None:
    sim = Sim.running()
    scopes = [scope(sim.record)]
    sim.acquire()
    sim.act()
    scopes.append(scope(sim.record))
    sim.lend()
    scopes.append(scope(sim.record))
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert scope(sim.record) == scopes[-1]
    sim.reclaim(version=3)
    scopes.append(scope(sim.record))
    sim.members["chat-0"].published = lambda path, version: error(ErrorCode.MANIFEST_INVALID)
    sim.until(lambda: bool(sim.record.lease and sim.record.lease.back and sim.record.lease.back.failure))
    scopes.append(scope(sim.record))
    sim.settle()
    scopes.append(scope(sim.record))
    assert len(set(scopes)) == len(scopes) == 6


# devices


def test_a_device_adds_up_members_and_trainer() -> None:
    sim = Sim.running()
    sim.trainer = TrainerView(7, alive=True, used_mib=42.5)
    device = devices(sim.world())["cpu0"]
    assert (device.used_mib, device.free_mib) == (742.5, 257.5)
    assert [holder.name for holder in device.holders] == ["chat-0", "chat-1", "trainer (pid 7)"]


def test_two_devices_are_counted_apart_and_no_budget_is_no_limit() -> None:
    sim = Sim.running()
    sim.servers["other"] = ServerView("other", device="gpu:X", budget_mib=0)
    sim.members["other-0"] = put(FakeMember(name="other-0", server="other"), Phase.RUNNING)
    found = devices(sim.world())
    assert found["cpu0"].used_mib == 700
    assert (found["gpu:X"].used_mib, found["gpu:X"].free_mib) == (350, float("inf"))


def test_resident_weights_count_before_they_are_measured() -> None:
    sleeping = put(FakeMember(), Phase.ASLEEP).vector()
    awake = sleeping.model_copy(update={"weights": Weights.RESIDENT, "phase": Phase.WEIGHTS_RESIDENT})
    assert MemberView("chat-0", "chat", 0, state=sleeping).used_mib == 100
    assert MemberView("chat-0", "chat", 0, state=awake).used_mib == 300


def test_a_member_that_does_not_answer_holds_what_it_held() -> None:
    last = put(FakeMember(), Phase.RUNNING).vector()
    assert MemberView("chat-0", "chat", 0, last=last).used_mib == 350
    assert MemberView("chat-0", "chat", 0).used_mib == 0


@pytest.mark.parametrize(
    ("phase", "need", "mib"),
    [
        (Phase.ASLEEP, Need.WEIGHTS, 200),
        (Phase.COMMITTED, Need.KV, 50),
        (Phase.ASLEEP, Need.ALL, 250),
        (Phase.PENDING_DEVICE, Need.ALL, 350),
        (Phase.ASLEEP, Need.NOTHING, 0),
    ],
)
def test_what_a_step_needs(phase: Phase, need: Need, mib: float) -> None:
    member = MemberView("chat-0", "chat", 0, state=put(FakeMember(), phase).vector())
    assert need_of(GroupRecord(group="actor"), member, need) == mib


def test_what_is_not_known_now_is_taken_from_the_last_lend() -> None:
    unknown = put(FakeMember(), Phase.PENDING_DEVICE).vector()
    unknown = unknown.model_copy(update={"weights_mib": 0, "kv_mib": 0, "residual_mib": None})
    member = MemberView("chat-0", "chat", 0, state=unknown)
    record = GroupRecord(group="actor", sizes={"chat-0": Size(weights=10, kv=20, residual=3)})
    assert need_of(record, member, Need.ALL) == 33
    assert need_of(GroupRecord(group="actor"), member, Need.ALL) == 0


def test_wakes_in_flight_are_reserved() -> None:
    sim = Sim.running()
    put(sim.members["chat-0"], Phase.ASLEEP)
    sim.busy["chat-0"] = (base(Verb.WAKE_WEIGHTS, "x", 1), "key")
    assert reserved(sim.world(), "cpu0") == 200
    sim.busy["chat-0"] = (base(Verb.RESUME, "x", 1), "key")
    assert reserved(sim.world(), "cpu0") == 0
    assert reserved(sim.world(), "gpu") == 0


def test_all_members_wake_or_none() -> None:
    sim = Sim.running()
    for member in sim.members.values():
        put(member, Phase.ASLEEP)
    sim.trainer = TrainerView(7, alive=True, used_mib=450)
    held = moves(sim.world(), sim.now)
    assert held.calls == ()
    assert held.blocked["memory:weights"].code is ErrorCode.DEVICE_NOT_FREE
    sim.trainer = TrainerView(7, alive=True, used_mib=400)
    assert [call.verb for call in moves(sim.world(), sim.now).calls] == [Verb.WAKE_WEIGHTS, Verb.WAKE_WEIGHTS]


def test_what_a_trainer_lacks_is_said_with_numbers() -> None:
    sim = Sim.running()
    assert lacking(sim.world(), 300) is None
    missing = lacking(sim.world(), 400)
    assert missing is not None
    assert missing.message == ("400 MiB of cpu0 must be free and 300 are: held by chat-0 350 MiB, chat-1 350 MiB.")
    assert missing.details["allowedMiB"] == 600


# guards of the record


def test_a_record_without_a_lease_cannot_change_or_end_one() -> None:
    record = GroupRecord(group="actor")
    with pytest.raises(ValueError, match="no lease"):
        record.with_lease(stage=LeaseStage.LENT)
    with pytest.raises(ValueError, match="no lease"):
        record.end_lease(LeaseStage.RELEASED)


def test_loading_is_only_what_is_published_above_what_serves() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    assert sim.record.loading is None
    sim.reclaim(version=4)
    assert sim.record.loading == 4
    decided = sim.record.model_copy(update={"serve": sim.record.serve.model_copy(update={"version": 4})})
    assert decided.loading is None
    assert GroupRecord(group="actor", lease=LeaseRecord(id="x", holder="y", ttl_seconds=1)).loading is None


def test_kv_alone_is_not_a_release() -> None:
    member = put(FakeMember(), Phase.COMMITTED)
    assert member.kv is KV.DISCARDED
    assert not MemberView("chat-0", "chat", 0, state=member.vector()).released
