"""A lost holder whose memory nobody can measure: what is unknown is never free."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.plan import ENGINE, LeaseRecord, PodRef, TrainerView, plan
from ebbtide_operator.plan import lease as leases
from ebbtide_operator.plan.lost import unmeasured
from ebbtide_operator.plan.memory import devices, shown
from ebbtide_operator.plan.plan import LIFE_POLL, MEMORY_POLL
from ebbtide_operator.views import _device
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .sim import Sim
from .test_leases import lent

OWN = PodRef(namespace="models", name="trainer-a", uid="a")
NEXT = PodRef(namespace="models", name="trainer-b", uid="b")
ALIVE = TrainerView(77, alive=True, used_mib=None)
RUNS = TrainerView(0, alive=True, used_mib=None, pods=(OWN,))


def lost(trainer: TrainerView, budget: float = 1000, **fields: object) -> Sim:
    """Return a group whose holder was not heard of for longer than its time to live."""
    sim = lent(**fields)
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=budget)
    sim.trainer = trainer
    sim.now += 31
    for _ in range(20):
        sim.step()
    return sim


def ask(sim: Sim, lease: str, **fields: object) -> None:
    sim.acquire(lease, holder=lease, **fields)


@pytest.mark.parametrize("budget", [1000, 0])
@pytest.mark.parametrize("who", [ALIVE, RUNS])
def test_who_lives_and_was_not_measured_keeps_the_device(who: TrainerView, budget: float) -> None:
    """All of the engines' memory would fit beside the 0 MiB that were measured: nothing was."""
    sim = lost(who, budget)
    assert (sim.stage, sim.record.owner) == (LeaseStage.OWNER_LOST, "trainer")
    assert sim.phases == {Phase.ASLEEP}
    sim.trainer = TrainerView(who.pid, alive=False)
    sim.settle()
    assert (sim.record.owner, sim.phases) == (ENGINE, {Phase.RUNNING})


def test_a_process_that_nobody_can_measure_is_named() -> None:
    stalled = plan(lost(ALIVE).world(), 1e4).conditions["chat"][2]
    assert (stalled.status, stalled.reason) == ("True", "OwnerLost")
    assert stalled.message.endswith("End process 77: nobody can measure what it holds of the device.")


def test_a_pod_that_nobody_can_measure_is_named_with_the_command_that_ends_it() -> None:
    made = plan(lost(RUNS).world(), 1e4)
    told = "Pod trainer-a has not ended, and nobody can measure what that holds: "
    assert made.conditions["chat"][2].message.endswith(f"{told}`kubectl delete pod trainer-a -n models`.")
    (obstacle,) = made.why["chat"].obstacles
    assert (obstacle.reason, obstacle.advice) == (
        "OwnerLost",
        f"{told}`kubectl delete pod trainer-a -n models`.",
    )


def test_many_pods_are_named_in_short_with_what_could_not_be_seen() -> None:
    pods = tuple(PodRef(namespace="models", name=f"rank-{n}", uid=str(n)) for n in range(5))
    sim = lost(replace(RUNS, pods=pods, note="The operator may not look for it."))
    message = plan(sim.world(), 1e4).conditions["chat"][2].message
    assert "Pods rank-0, rank-1, rank-2 and 2 more have not ended" in message
    assert "`kubectl delete pod rank-2 -n models`. The operator may not look for it." in message
    assert "rank-3" not in message


def test_a_pod_that_only_waits_for_its_turn_holds_nothing() -> None:
    """The Job made another pod for the one that is gone: it has the same label, and waits for the lease to end."""
    sim = lost(replace(RUNS, pods=(NEXT,)), pod=OWN)
    assert sim.stage is LeaseStage.OWNER_LOST, "it has not asked for the lease: it may be another part of the trainer"
    ask(sim, "l2", pod=NEXT)
    sim.until(lambda: bool(sim.record.lease and sim.record.lease.id == "l2"))


def test_a_pod_that_waits_does_not_end_another_one() -> None:
    sim = lost(replace(RUNS, pods=(OWN, NEXT)), pod=OWN)
    ask(sim, "l2", pod=NEXT)
    for _ in range(20):
        sim.step()
    assert sim.stage is LeaseStage.OWNER_LOST
    message = plan(sim.world(), sim.now).conditions["chat"][2].message
    assert "trainer-a" in message
    assert "trainer-b" not in message


def test_a_pod_that_lost_its_lease_and_asks_again_waits_for_nobody() -> None:
    sim = lost(RUNS, pod=OWN)
    ask(sim, "l2", pod=OWN)
    assert unmeasured(sim.world()) is None
    assert plan(sim.world(), sim.now).conditions["chat"][2].reason != "OwnerLost"
    sim.until(lambda: bool(sim.record.lease and sim.record.lease.id == "l2"))


@pytest.mark.parametrize(("pid", "start", "same"), [(77, 5, True), (77, 6, False), (78, 5, False), (None, 0, False)])
def test_a_process_that_lost_its_lease_and_asks_again_waits_for_nobody(pid: int, start: int, same: bool) -> None:
    sim = lost(ALIVE, pid=77, pid_start=5)
    ask(sim, "l2", pid=pid, pid_start=start)
    for _ in range(20):
        sim.step()
    assert (sim.record.owner == ENGINE) is same


def test_what_was_measured_counts_though_its_holder_asks_again() -> None:
    sim = lost(replace(ALIVE, used_mib=700), pid=77, pid_start=5)
    ask(sim, "l2", pid=77, pid_start=5)
    for _ in range(20):
        sim.step()
    assert sim.stage is LeaseStage.OWNER_LOST


def test_a_holder_that_may_live_for_hours_is_looked_at_now_and_then() -> None:
    sim = lost(ALIVE)
    assert plan(sim.world(), sim.now).requeue_after == LIFE_POLL
    sim.trainer = replace(ALIVE, used_mib=700)
    assert plan(sim.world(), sim.now).requeue_after == MEMORY_POLL


def test_nothing_is_told_of_a_device_that_somebody_uses_unmeasured_but_who_that_is() -> None:
    (device,) = devices(lost(ALIVE).world()).values()
    assert device.used_mib == 200
    assert shown(device.holders)[-1] == {"name": "trainer (pid 77)"}
    assert "freeMiB" not in _device(device)
    (of_a_pod,) = devices(lost(RUNS).world()).values()
    assert str(of_a_pod.holders[-1]) == "trainer (pod trainer-a) not measured"


PODS = [PodRef(namespace="models", name=f"pod-{n}", uid=f"u{n}") for n in range(5)]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.sampled_from(range(5))), st.sets(st.sampled_from(range(5))), st.sampled_from([None, *range(5)]))
def test_a_device_is_free_exactly_when_every_pod_that_runs_only_waits(
    runs: set[int], waits: set[int], own: int | None
) -> None:
    queue = tuple(LeaseRecord(id=f"q{n}", holder="t", ttl_seconds=9, pod=PODS[n]) for n in sorted(waits))
    lease = LeaseRecord(id="l", holder="t", ttl_seconds=9, pod=None if own is None else PODS[own])
    record = SimpleNamespace(lease=lease, queue=(*queue, LeaseRecord(id="unbound", holder="t", ttl_seconds=9)))
    view = TrainerView(0, alive=bool(runs), used_mib=None, pods=tuple(PODS[n] for n in sorted(runs)))
    left = unmeasured(SimpleNamespace(record=record, trainer=view))  # type: ignore[arg-type]
    assert {pod.uid for pod in (left.pods if left else ())} == {f"u{n}" for n in runs - waits}
    assert (left is None) == (runs <= waits)


def test_a_renewal_finds_a_holder_that_was_not_measured_again() -> None:
    sim = lost(ALIVE, pid=77)
    sim.command(leases.renew(sim.record, "l1", sim.record.epoch))
    sim.renewed["l1"] = sim.now
    sim.step()
    assert sim.stage is LeaseStage.LENT
