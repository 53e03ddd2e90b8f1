"""The queue, the time to live, and who owns the devices after a holder was lost."""

from __future__ import annotations

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, LendRequest, ReclaimRequest, WeightsSource
from ebbtide_operator.plan import ENGINE, GroupRecord, LeaseRecord, ReturnIntent, Serve, TrainerView
from ebbtide_operator.plan import lease as leases
from ebbtide_operator.plan.lease import Already, Refusal
from ebbtide_operator.plan.record import PAST

from .sim import Sim


def asked(lease: str = "l1", holder: str = "trainer", **fields: object) -> LeaseRecord:
    return LeaseRecord(id=lease, holder=holder, ttl_seconds=30, fingerprint="f", **fields)  # type: ignore[arg-type]


def held(stage: LeaseStage = LeaseStage.GRANTED, **fields: object) -> GroupRecord:
    lease = asked(stage=stage, epoch=2, **fields)
    owner = "trainer" if stage in {LeaseStage.LENT, LeaseStage.OWNER_LOST} else ENGINE
    return GroupRecord(group="actor", epoch=2, owner=owner, lease=lease)


def refusal(answer: object) -> ErrorCode:
    assert isinstance(answer, Refusal), answer
    return answer.code


def lent(ttl: float = 30.0, **fields: object) -> Sim:
    sim = Sim.running()
    sim.acquire(ttl=ttl, **fields)
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    return sim


# the queue


def test_leases_are_granted_in_the_order_they_were_asked_for() -> None:
    sim = Sim.running()
    for name in ("a", "b", "c"):
        sim.acquire(name, holder=name)
    granted = []
    for _ in range(3):
        sim.act()
        assert sim.record.lease is not None
        granted.append((sim.record.lease.holder, sim.record.lease.epoch))
        sim.release(sim.record.lease.id)
    assert granted == [("a", 2), ("b", 4), ("c", 6)]


def test_the_same_request_twice_is_one_place_in_the_queue() -> None:
    record = leases.enqueue(GroupRecord(group="actor"), asked())
    assert isinstance(record, GroupRecord)
    assert isinstance(leases.enqueue(record, asked()), Already)
    other = asked().model_copy(update={"fingerprint": "other"})
    assert refusal(leases.enqueue(record, other)) is ErrorCode.OPERATION_MISMATCH


def test_nobody_can_call_himself_engine() -> None:
    assert refusal(leases.enqueue(GroupRecord(group="actor"), asked(holder="engine"))) is ErrorCode.INVALID_REQUEST


def test_a_cancelled_request_leaves_the_queue() -> None:
    record = GroupRecord(group="actor", queue=(asked("a"), asked("b")))
    after = leases.release(record, "a", 600)
    assert isinstance(after, GroupRecord)
    assert [lease.id for lease in after.queue] == ["b"]
    assert after.past[0].stage is LeaseStage.CANCELLED
    assert isinstance(leases.release(after, "a", 600), Already)


def test_a_request_whose_caller_is_gone_leaves_the_queue() -> None:
    sim = Sim.running()
    sim.acquire("a", ttl=1e6)
    sim.acquire("b", ttl=30)
    sim.acquire("c", ttl=1e6)
    sim.act()
    sim.now += 31
    sim.act()
    assert [lease.id for lease in sim.record.queue] == ["c"]


def test_only_so_many_ended_leases_are_remembered() -> None:
    record = GroupRecord(group="actor")
    for number in range(PAST + 5):
        queued = leases.enqueue(record, asked(f"l{number}"))
        assert isinstance(queued, GroupRecord)
        record = queued.retire(queued.queue[0], LeaseStage.CANCELLED)
    assert len(record.past) == PAST
    assert record.past[-1].id == f"l{PAST + 4}"


# who may call


@pytest.mark.parametrize(
    ("record", "epoch", "code"),
    [
        (held(), None, ErrorCode.NOT_LEASE_HOLDER),
        (held(), 1, ErrorCode.STALE_EPOCH),
        (held(), 3, ErrorCode.STALE_EPOCH),
        (GroupRecord(group="actor", epoch=2), 2, ErrorCode.NOT_LEASE_HOLDER),
        (GroupRecord(group="actor", epoch=2), 1, ErrorCode.STALE_EPOCH),
    ],
)
def test_who_does_not_hold_the_lease_is_told_so(record: GroupRecord, epoch: int | None, code: ErrorCode) -> None:
    assert refusal(leases.check_epoch(record, epoch)) is code


def test_the_holder_may_call() -> None:
    assert leases.check_epoch(held(), 2) is None


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        (LeaseStage.LENDING, ErrorCode.OPERATION_IN_PROGRESS),
        (LeaseStage.RETURNING, ErrorCode.ILLEGAL_TRANSITION),
        (LeaseStage.OWNER_LOST, ErrorCode.ILLEGAL_TRANSITION),
    ],
)
def test_lend_in_the_wrong_stage(stage: LeaseStage, code: ErrorCode) -> None:
    assert refusal(leases.lend(held(stage), LendRequest(), "op", 300)) is code


def test_lend_of_what_is_lent_changes_nothing() -> None:
    assert isinstance(leases.lend(held(LeaseStage.LENT), LendRequest(), "op", 300), Already)


def test_reclaim_before_anything_was_lent() -> None:
    answer = leases.reclaim(held(), ReclaimRequest(), ReturnIntent(deadline=1))
    assert refusal(answer) is ErrorCode.ILLEGAL_TRANSITION


def test_an_older_version_is_refused_before_anything_is_touched() -> None:
    record = held(LeaseStage.LENT).model_copy(update={"serve": Serve(version=7)})
    for version in (6, 7):
        answer = leases.reclaim(record, ReclaimRequest(version=version), ReturnIntent(version=version, deadline=1))
        assert refusal(answer) is ErrorCode.VERSION_REGRESSION
    source = ReclaimRequest(source=WeightsSource(path="/w"))
    assert refusal(leases.reclaim(record, source, ReturnIntent(deadline=1))) is ErrorCode.INVALID_REQUEST


def test_a_second_reclaim_is_told_of_the_first() -> None:
    record = held(LeaseStage.RETURNING, back=ReturnIntent(operation="one", deadline=1))
    answer = leases.reclaim(record, ReclaimRequest(), ReturnIntent(operation="two", deadline=1))
    assert refusal(answer) is ErrorCode.OPERATION_IN_PROGRESS
    assert isinstance(answer, Refusal)
    assert answer.details == {"operation": "one"}


def test_a_reclaim_joins_a_way_back_that_nobody_waits_for_any_more() -> None:
    record = held(LeaseStage.RETURNING, back=ReturnIntent(version=3, deadline=1))
    joined = leases.reclaim(record, ReclaimRequest(), ReturnIntent(operation="two", deadline=9))
    assert isinstance(joined, GroupRecord)
    assert joined.lease is not None
    assert joined.lease.back == ReturnIntent(operation="two", version=3, deadline=9)
    other = leases.reclaim(record, ReclaimRequest(version=4), ReturnIntent(operation="x", version=4, deadline=9))
    assert refusal(other) is ErrorCode.ILLEGAL_TRANSITION


# giving back


def test_giving_back_an_unused_lease_ends_it_one_epoch_on() -> None:
    after = leases.release(held(), "l1", 600)
    assert isinstance(after, GroupRecord)
    assert (after.lease, after.owner, after.epoch) == (None, ENGINE, 3)
    assert isinstance(leases.release(after, "l1", 600), Already)
    assert refusal(leases.release(after, "unknown", 600)) is ErrorCode.NOT_FOUND


def test_giving_back_what_was_lent_brings_the_old_weights_back() -> None:
    sim = lent()
    sim.release()
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert (sim.record.owner, sim.record.epoch) == (ENGINE, 3)


def test_giving_back_while_lending_stops_the_lend() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.lend()
    sim.act()
    sim.release()
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert sim.record.lease is None
    error = sim.finished["lend-1"].error
    assert error is not None
    assert error.code is ErrorCode.NOT_LEASE_HOLDER
    assert {record.owner for record in sim.saves} == {ENGINE}


# renewing, and not


def test_renewing_is_heard_of_and_changes_nothing() -> None:
    assert isinstance(leases.renew(held(LeaseStage.LENT), "l1", 2), Already)
    assert refusal(leases.renew(held(), "l9", 2)) is ErrorCode.NOT_FOUND
    assert refusal(leases.renew(held(), "l1", 1)) is ErrorCode.STALE_EPOCH


def test_a_lost_owner_who_comes_back_in_time_is_the_owner_again() -> None:
    found = leases.renew(held(LeaseStage.OWNER_LOST), "l1", 2)
    assert isinstance(found, GroupRecord)
    assert found.lease is not None
    assert found.lease.stage is LeaseStage.LENT


def test_an_unused_lease_that_expires_goes_to_the_next() -> None:
    sim = Sim.running()
    sim.acquire("a", ttl=30)
    sim.acquire("b", ttl=1e6)
    sim.act()
    sim.now += 31
    sim.act()
    assert sim.record.lease is not None
    assert sim.record.lease.id == "b"
    assert refusal(leases.renew(sim.record, "a", 2)) is ErrorCode.STALE_EPOCH
    assert refusal(leases.release(sim.record, "a", 600)) is ErrorCode.STALE_EPOCH


def test_a_dead_holder_frees_nothing_until_its_memory_is_measured_free() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.now += 31
    for _ in range(50):
        made = sim.step()
    assert sim.stage is LeaseStage.OWNER_LOST
    assert sim.record.owner == "trainer"
    assert sim.phases == {Phase.ASLEEP}
    stalled = made.conditions["chat"][2]
    assert (stalled.status, stalled.reason) == ("True", "OwnerLost")
    assert "End process 77, which holds 700 MiB" in stalled.message
    sim.trainer = TrainerView(77, alive=False)
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert (sim.record.owner, sim.record.epoch) == (ENGINE, 3)
    assert refusal(leases.renew(sim.record, "l1", 2)) is ErrorCode.STALE_EPOCH
    assert refusal(leases.check_epoch(sim.record, 2)) is ErrorCode.STALE_EPOCH


def test_an_engine_that_died_meanwhile_is_counted_as_large_as_it_was() -> None:
    sim = lent()
    for member in sim.members.values():
        member.kill_engine()
    sim.step()
    for member in sim.members.values():
        member.forget_sizes = True
    assert sim.phases == {Phase.PENDING_DEVICE}
    sim.trainer = TrainerView(77, alive=True, used_mib=400)
    sim.now += 31
    for _ in range(10):
        sim.step()
    assert sim.stage is LeaseStage.OWNER_LOST, "two engines of 350 MiB do not fit beside 400 of 1000"
    sim.trainer = TrainerView(77, alive=True, used_mib=290)
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


def test_a_holder_that_expired_but_uses_little_is_taken_over() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=50)
    sim.now += 31
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


def test_an_operation_of_a_lost_holder_is_answered() -> None:
    sim = lent()
    sim.started["lend-1"] = sim.now
    sim.unreachable = {"chat-0"}
    sim.now += 31
    sim.act()
    assert sim.stage is LeaseStage.OWNER_LOST
    error = sim.finished["lend-1"].error
    assert error is not None
    assert error.code is ErrorCode.STALE_EPOCH


def test_a_lend_whose_holder_is_gone_is_undone() -> None:
    sim = Sim.running()
    sim.acquire(ttl=30)
    sim.step()
    sim.lend()
    sim.act()
    sim.now += 31
    sim.settle()
    assert sim.phases == {Phase.RUNNING}
    assert {record.owner for record in sim.saves} == {ENGINE}
    assert sim.record.lease is None


def test_a_way_back_does_not_expire() -> None:
    sim = lent()
    sim.reclaim(version=3)
    sim.now += 31
    sim.settle()
    assert {member.version for member in sim.members.values()} == {3}
    assert sim.finished["back-1"].error is None


# epochs and versions that the record does not know


def test_agents_that_saw_a_higher_epoch_fence_everybody() -> None:
    sim = Sim.running()
    sim.members["chat-1"].epoch = 9
    sim.act()
    assert sim.record.epoch == 10
    sim.settle()


def test_a_holder_whose_epoch_is_not_the_newest_is_lost() -> None:
    sim = lent(ttl=5)
    sim.members["chat-1"].epoch = 9
    sim.act()
    assert (sim.stage, sim.record.epoch) == (LeaseStage.OWNER_LOST, 10)
    assert refusal(leases.renew(sim.record, "l1", 2)) is ErrorCode.STALE_EPOCH
    sim.settle()
    assert sim.record.owner == ENGINE
    assert sim.record.epoch == 11


def test_a_lost_record_takes_the_version_from_the_members() -> None:
    sim = Sim.running()
    for member in sim.members.values():
        member.version = 5
    sim.settle()
    assert sim.record.serve.version == 5


# step by step


def test_a_holder_that_lends_by_hand_owns_when_all_is_measured_asleep() -> None:
    sim = Sim.running()
    sim.acquire()
    sim.step()
    sim.record = sim.record.model_copy(update={"manual": frozenset({"chat"})})
    sim.members["chat-0"].phase = Phase.ASLEEP
    sim.step()
    assert sim.record.owner == ENGINE
    for member in sim.members.values():
        member._sleep({"level": 1})
    sim.act()
    assert (sim.stage, sim.record.owner) == (LeaseStage.LENT, "trainer")
    sim.release()
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


def test_a_server_driven_by_hand_is_left_alone() -> None:
    sim = Sim.running()
    sim.record = sim.record.model_copy(update={"manual": frozenset({"chat"})})
    sim.members["chat-0"]._sleep({"level": 1})
    made = sim.act()
    assert made.actions == ()
    assert made.conditions["chat"][0].reason == "Manual"
