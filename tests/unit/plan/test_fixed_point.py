"""From any world, reachable or corrupted, plans reach a state in which there is nothing to do.

The simulated executor checks at every save that the epoch never goes back, that the engine and at most one trainer
own the group, and that a trainer becomes the owner only when every member was measured asleep (Sim._save).
"""

from __future__ import annotations

import os
from dataclasses import replace

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase, Weights
from ebbtide_api.verbs import LeaseStage, Verb
from ebbtide_operator.plan import (
    ENGINE,
    GroupRecord,
    LeaseRecord,
    LendIntent,
    ReturnIntent,
    Save,
    Serve,
    TrainerView,
    plan,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fake_member import FakeMember, Script, error

from .sim import Sim, put

EXAMPLES = int(os.environ.get("EBBTIDE_EXAMPLES", "60"))
CHECKED = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CODES = st.sampled_from([None, *(set(ErrorCode) - {ErrorCode.STALE_EPOCH})])
VERBS = [verb.value for verb in Verb if verb not in {Verb.PAUSE, Verb.RELEASE_KV, Verb.RECONCILE}]
PLACES = [phase for phase in Phase if phase not in {Phase.DRAINING, Phase.WAKING_KV, Phase.WAKING_WEIGHTS}]
RESTLESS = {Phase.FAULTED, Phase.RECOVERING, Phase.UNKNOWN, Phase.STARTING}
HELD = [LeaseStage.GRANTED, LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST]


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    fails = draw(st.dictionaries(st.sampled_from(VERBS), st.lists(CODES, max_size=2), max_size=3))
    return Script(fails=fails, dies_in=set(draw(st.lists(st.sampled_from(VERBS), max_size=2))))


@st.composite
def members(draw: st.DrawFn, name: str) -> FakeMember:
    member = put(
        FakeMember(name=name, boot=draw(st.integers(1, 3)), script=draw(scripts())),
        draw(st.sampled_from(PLACES)),
        version=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 6)),
    )
    if draw(st.integers(0, 4)) == 0 and member.phase is Phase.WEIGHTS_RESIDENT:
        member.weights = draw(st.sampled_from(list(Weights)))
    return member


@st.composite
def leases(draw: st.DrawFn, stage: LeaseStage, epoch: int) -> LeaseRecord:
    failure = draw(st.sampled_from([None, error(ErrorCode.DRAIN_DEADLINE)]))
    version = draw(st.sampled_from([None, 2, 5]))
    lending = stage in {LeaseStage.LENDING, LeaseStage.LENT, LeaseStage.OWNER_LOST}
    return LeaseRecord(
        id="l1",
        holder="trainer",
        stage=stage,
        epoch=epoch,
        ttl_seconds=draw(st.sampled_from([5.0, 1e9])),
        ending=draw(st.booleans()) if stage is LeaseStage.LENDING else False,
        lend=LendIntent(operation="lend", deadline=50, failure=failure if stage is LeaseStage.LENDING else None)
        if lending
        else None,
        back=ReturnIntent(operation="back", version=version, source="/w" if version else None, deadline=50)
        if stage is LeaseStage.RETURNING
        else None,
    )


@st.composite
def worlds(draw: st.DrawFn) -> Sim:
    """Any intent over any members, also ones that do not fit together."""
    sim = Sim()
    replicas = draw(st.integers(1, 3))
    awake = draw(st.integers(0, replicas))
    sim.servers["chat"] = replace(sim.servers["chat"], replicas=replicas, awake=awake, budget_mib=0)
    for number in range(draw(st.integers(0, 3))):
        sim.members[f"chat-{number}"] = draw(members(f"chat-{number}"))
    epoch = draw(st.integers(1, 4))
    stage = draw(st.sampled_from([None, *HELD]))
    owner = "trainer" if stage in {LeaseStage.LENT, LeaseStage.RETURNING, LeaseStage.OWNER_LOST} else ENGINE
    sim.record = GroupRecord(
        group="actor",
        epoch=epoch,
        owner=owner,
        serve=Serve(version=draw(st.integers(0, 3)), source=draw(st.sampled_from(["", "/w"]))),
        lease=draw(leases(stage, epoch)) if stage else None,
        manual=draw(st.sampled_from([frozenset(), frozenset({"chat"})])) if stage is None else frozenset(),
    )
    sim.sources = draw(st.sampled_from([set(), {"/w"}]))
    sim.started = dict.fromkeys(draw(st.sets(st.sampled_from(["lend", "back"]))), sim.now)
    sim.renewed = {"l1": sim.now}
    sim.longest = 100.0
    return sim


def quiet(sim: Sim, steps: int = 300) -> None:
    """Step until nothing is to do, nothing is under way and nothing will change by itself."""
    still = 0
    for _ in range(steps):
        before = sim.record
        made = sim.step()
        members = sim.members.values()
        settled = all(member.current is None and member.phase not in RESTLESS for member in members)
        still = still + 1 if not made.actions and not sim.busy and settled and before == sim.record else 0
        if still == 3:
            return
    raise AssertionError(f"no fixed point after {steps} steps: {sim.describe()}")


@CHECKED
@given(worlds())
def test_any_world_reaches_a_fixed_point(sim: Sim) -> None:
    quiet(sim)
    lease = sim.record.lease
    assert lease is None or lease.stage in {LeaseStage.GRANTED, LeaseStage.LENT, LeaseStage.OWNER_LOST}
    assert not sim.started, "an operation was never answered"
    if lease is None and not sim.record.manual:
        for name, member in sim.members.items():
            awake = int(name.rsplit("-", 1)[1]) < sim.servers["chat"].awake
            assert member.phase in ({Phase.RUNNING} if awake else {Phase.ASLEEP, Phase.PENDING_DEVICE}), name


@CHECKED
@given(worlds())
def test_at_the_fixed_point_a_plan_carried_out_twice_changes_nothing(sim: Sim) -> None:
    quiet(sim)
    first, second = plan(sim.world(), sim.now), plan(sim.world(), sim.now)
    assert first.actions == second.actions == ()
    assert first.conditions == second.conditions


@CHECKED
@given(worlds())
def test_plan_is_a_function_and_its_save_is_stable(sim: Sim) -> None:
    world = sim.world()
    first = plan(world, sim.now)
    assert first == plan(world, sim.now)
    saved = [action.record for action in first.actions if isinstance(action, Save)]
    assert len(saved) <= 1
    if saved:
        again = plan(world.after(saved[0]), sim.now)
        assert not [action for action in again.actions if isinstance(action, Save)]


@CHECKED
@given(worlds())
def test_exactly_one_of_ready_reconciling_stalled_is_true(sim: Sim) -> None:
    for _ in range(5):
        for found in sim.step().conditions.values():
            told = {finding.type: finding.status for finding in found}
            assert [told["Ready"], told["Reconciling"], told["Stalled"]].count("True") == 1  # type: ignore[index]
            assert all(finding.reason and finding.message for finding in found)


@CHECKED
@given(st.data())
def test_a_lend_never_changes_the_owner_when_one_member_failed(data: st.DataObject) -> None:
    sim = Sim.running(3)
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=2000)
    bad = data.draw(st.sampled_from(sorted(sim.members)))
    final = {ErrorCode.RELEASE_INCOMPLETE, ErrorCode.DRAIN_DEADLINE, ErrorCode.HOST_MEMORY_INSUFFICIENT}
    sim.members[bad].script.fails = {"sleep": [data.draw(st.sampled_from(sorted(final)))]}
    for member in sim.members.values():
        if data.draw(st.booleans()):
            member.script.dies_in = {data.draw(st.sampled_from(["sleep", "wake-weights", "wake-kv", "resume"]))}
    sim.acquire()
    sim.step()
    sim.lend()
    sim.until(lambda: not sim.started)
    assert sim.finished["lend-1"].error is not None
    assert {record.owner for record in sim.saves} == {ENGINE}


@CHECKED
@given(st.data())
def test_a_crash_of_the_operator_at_any_step_changes_nothing_of_the_outcome(data: st.DataObject) -> None:
    """What an operator remembers in memory is lost; record, members and open operations are not."""
    sim = Sim.running(2)
    sim.acquire()
    sim.step()
    sim.lend()
    crashes = data.draw(st.sets(st.integers(0, 12), max_size=4))
    for count in range(200):
        if sim.stage is LeaseStage.LENT and not sim.started:
            break
        sim.step()
        if count in crashes:
            sim.outcomes.clear()
            sim.busy.clear()
            sim.held.clear()
            sim.renewed.clear()
    assert sim.finished["lend-1"].error is None
    sim.reclaim(version=7)
    crashes = data.draw(st.sets(st.integers(0, 25), max_size=4))
    for count in range(300):
        if sim.record.lease is None:
            break
        sim.step()
        if count in crashes:
            sim.outcomes.clear()
            sim.busy.clear()
    assert {member.version for member in sim.members.values()} == {7}
    assert sim.finished["back-1"].error is None
    for member in sim.members.values():
        assert member.calls.count("sleep") == member.calls.count("commit-update") == 1


@CHECKED
@given(st.floats(0, 900), st.booleans())
def test_a_lost_owner_is_followed_only_when_its_memory_is_free(used: float, alive: bool) -> None:
    sim = Sim.running(2)
    sim.acquire(ttl=5)
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    sim.trainer = TrainerView(1, alive=alive, used_mib=used if alive else 0)
    sim.now += 6
    for _ in range(30):
        sim.step()
    free = not alive or used <= 1000 - 200 - 500 + 1
    assert (sim.record.owner == ENGINE) is free
