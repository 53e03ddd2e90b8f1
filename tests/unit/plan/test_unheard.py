"""What a plan makes of members that it did not hear of yet, or of which it knows too little."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.errors import ErrorBody, ErrorCode
from ebbtide_api.state import Phase, Weights
from ebbtide_api.verbs import LeaseStage, LendResult
from ebbtide_operator.plan import ENGINE, Call, GroupRecord, MemberView, ServerView, TrainerView, World, plan
from ebbtide_operator.plan import lease as leases
from ebbtide_operator.plan.memory import devices, reserved

from tests.support.fake_member import BUDGET, FakeMember

from .sim import Sim, put
from .test_leases import lent


@pytest.mark.parametrize(("budget", "taken"), [(1000, False), (0, True)])
def test_an_engine_that_was_never_seen_awake_is_not_started_beside_a_lost_holder(budget: float, taken: bool) -> None:
    """How much it needs nobody knows, so what the holder leaves of a device with a budget may not be enough."""
    sim = lent()
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=budget)
    for member in sim.members.values():
        member.kill_engine()
    sim.step()
    for member in sim.members.values():
        member.forget_sizes = True
    sim.record = sim.record.model_copy(update={"sizes": {}})
    sim.trainer = TrainerView(77, alive=True, used_mib=750)
    sim.now += 31
    for _ in range(20):
        sim.step()
    assert (sim.stage is None) is taken
    sim.trainer = TrainerView(77, alive=False)
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


@pytest.mark.parametrize("phase", [Phase.UNKNOWN, Phase.RECOVERING, Phase.WEIGHTS_RESIDENT])
def test_a_member_of_which_too_little_is_known_does_not_take_the_device_back(phase: Phase) -> None:
    """An agent that has just started knows nothing yet. That a member is not asleep does not mean that it is awake."""
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.now += 31
    sim.step()
    assert sim.stage is LeaseStage.OWNER_LOST
    put(sim.members["chat-0"], phase)
    put(sim.members["chat-1"], Phase.RUNNING)
    if phase is Phase.UNKNOWN:
        sim.members["chat-0"].weights = Weights.UNKNOWN
    sim.act()
    assert sim.stage is LeaseStage.OWNER_LOST


def test_a_lost_holders_devices_are_taken_when_all_members_hold_their_memory() -> None:
    sim = lent()
    sim.trainer = TrainerView(77, alive=True, used_mib=700)
    sim.record = sim.record.with_lease(stage=LeaseStage.OWNER_LOST)
    for member in sim.members.values():
        put(member, Phase.RUNNING)
    sim.act()
    assert sim.record.owner == ENGINE


def test_after_a_restart_a_lend_is_answered_once_every_member_was_heard_of_again() -> None:
    """Of a member that was not heard of nothing is measured: what is free would be told too large."""
    sim = lent()
    sim.started["lend-1"] = sim.now
    del sim.finished["lend-1"]
    members, sim.members = sim.members, {}
    sim.act()
    assert "lend-1" in sim.started
    sim.members = members
    sim.unreachable.add("chat-1")
    sim.act()
    assert "lend-1" in sim.started
    sim.unreachable.clear()
    sim.act()
    result = sim.finished["lend-1"].result
    assert isinstance(result, LendResult)
    assert result.devices[0].free_mib == 800.0


def test_a_member_that_is_not_started_hears_of_the_epoch_before_it_is_lent() -> None:
    """A grant of the epoch before may still be on its way to it: its agent must refuse it."""
    sim = Sim()
    for name in sim.servers["chat"].member_names:
        sim.members[name] = FakeMember(name=name)
    late = next(action for action in plan(sim.world(), sim.now).actions if isinstance(action, Call))
    sim.acquire()
    sim.command(leases.promote(sim.record))
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    answer = sim.members[late.member].accept(late.verb, late.body.model_dump(mode="json"), late.key, late.epoch)
    assert isinstance(answer, ErrorBody)
    assert answer.code is ErrorCode.STALE_EPOCH
    assert sim.phases == {Phase.PENDING_DEVICE}


def test_a_member_that_was_not_heard_of_yet_is_counted_as_large_as_it_was() -> None:
    """After a restart of ours it may be asleep or awake. Its memory is not measured, so it is not free."""
    world = lent().world()
    heard, other = world.members
    assert devices(world)["cpu0"].free_mib == BUDGET - 2 * 100
    for members in ((heard,), (heard, replace(other, state=None, last=None))):
        assert devices(replace(world, members=members))["cpu0"].free_mib == BUDGET - 100 - 350
    silent = replace(other, state=None)
    assert devices(replace(world, members=(heard, silent)))["cpu0"].free_mib == BUDGET - 2 * 100


def test_a_wake_takes_its_memory_also_while_its_agent_does_not_answer() -> None:
    member = put(FakeMember(), Phase.ASLEEP).vector()
    view = MemberView("chat-0", "chat", 0, last=member, busy="wake-weights-x-b1-v0")
    world = World(GroupRecord(group="actor"), {"chat": ServerView("chat", budget_mib=1000)}, (view,))
    assert reserved(world, "cpu0") == 200.0
