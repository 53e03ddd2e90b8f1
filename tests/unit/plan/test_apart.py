"""Replicas with a device of their own, as pods on CPUs have: none is in another one's way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, LendResult, Verb
from ebbtide_operator.plan import GroupRecord, ServerView, TrainerView
from ebbtide_operator.plan.keys import base
from ebbtide_operator.plan.memory import devices, lacking, missing_need, reserved
from ebbtide_operator.plan.record import Size

from tests.support.fake_member import FakeMember

from .sim import Sim, put

TIGHT = 400.0
"""Enough for one member, which takes 350, and not for two."""
SIZE = Size(weights=200, kv=50, residual=100)


def group(*, apart: bool, replicas: int = 3) -> Sim:
    known = GroupRecord(group="actor", sizes={f"chat-{n}": SIZE for n in range(replicas)})
    sim = Sim(record=known)
    sim.servers["chat"] = ServerView("chat", replicas=replicas, awake=replicas, budget_mib=TIGHT, apart=apart)
    for name in sim.servers["chat"].member_names:
        sim.members[name] = put(FakeMember(name=name), Phase.PENDING_DEVICE)
    return sim


@pytest.mark.parametrize("apart", [False, True])
def test_a_budget_for_one_serves_all_that_are_apart_and_not_all_that_share_it(apart: bool) -> None:
    sim = group(apart=apart)
    for _ in range(100):
        sim.step()
    assert (sim.phases == {Phase.RUNNING}) is apart


def test_all_are_lent_told_apart_and_come_back() -> None:
    sim = group(apart=True)
    sim.settle()
    sim.acquire(need_mib=300.0)
    sim.step()
    sim.lend()
    sim.until(lambda: sim.stage is LeaseStage.LENT)
    result = sim.finished["lend-1"].result
    assert isinstance(result, LendResult)
    told = [(device.id, device.freed_mib, device.residual_mib, device.free_mib) for device in result.devices]
    assert told == [(f"chat-{n}/cpu0", 250.0, 100.0, 300.0) for n in range(3)]
    sim.trainer = TrainerView(7, alive=True, used_mib=200)
    sim.reclaim()
    for _ in range(30):
        sim.step()
    assert Phase.RUNNING not in sim.phases, "what the trainer uses may be on any of them"
    sim.trainer = TrainerView(7, alive=True, used_mib=0)
    sim.settle()
    assert sim.phases == {Phase.RUNNING}


def test_each_device_has_its_member_and_the_trainer() -> None:
    sim = group(apart=True, replicas=2)
    put(sim.members["chat-0"], Phase.RUNNING)
    sim.trainer = TrainerView(7, alive=True, used_mib=30)
    del sim.members["chat-1"]  # asked for, and not there yet: it may hold all that it held
    found = devices(sim.world())
    holders = {name: [(holder.name, holder.mib) for holder in device.holders] for name, device in found.items()}
    assert holders == {
        "chat-0/cpu0": [("chat-0", 350), ("trainer (pid 7)", 30)],
        "chat-1/cpu0": [("chat-1", 350), ("trainer (pid 7)", 30)],
    }
    assert {device.budget_mib for device in found.values()} == {TIGHT}
    refused = lacking(sim.world(), 100)
    assert refused is not None
    assert "chat-0/cpu0" in refused.message
    assert lacking(sim.world(), 20) is None


def test_a_wake_in_flight_is_reserved_on_its_own_device() -> None:
    sim = group(apart=True, replicas=2)
    put(sim.members["chat-0"], Phase.ASLEEP)
    sim.busy["chat-0"] = (base(Verb.WAKE_WEIGHTS, "x", 1), "key")
    assert (reserved(sim.world(), "chat-0/cpu0"), reserved(sim.world(), "chat-1/cpu0")) == (200, 0)
    assert missing_need(sim.world()) == {"chat-0/cpu0": 250, "chat-1/cpu0": 350}


def test_a_member_that_nobody_wants_any_more_still_has_its_device() -> None:
    sim = group(apart=True, replicas=2)
    put(sim.members["chat-1"], Phase.RUNNING)
    sim.servers["chat"] = replace(sim.servers["chat"], replicas=1, awake=1)
    assert set(missing_need(sim.world())) <= set(devices(sim.world())) == {"chat-0/cpu0", "chat-1/cpu0"}


def test_servers_that_share_a_device_are_beside_those_that_do_not() -> None:
    sim = group(apart=True, replicas=1)
    put(sim.members["chat-0"], Phase.RUNNING)
    sim.servers["other"] = ServerView("other", budget_mib=1000)
    sim.members["other-0"] = put(FakeMember(name="other-0", server="other"), Phase.RUNNING)
    found = devices(sim.world())
    assert {name: (device.budget_mib, device.used_mib) for name, device in found.items()} == {
        "chat-0/cpu0": (TIGHT, 350),
        "cpu0": (1000, 350),
    }
