"""Real engines in pods, under Pod Security `restricted`: they serve, a trainer's Job borrows them, they sleep and wake.

Memory is read from the cgroups of the engines' containers, beside what Ebbtide says.
"""

import pytest

from . import trainer
from .images import Images
from .kube import apply, kubectl
from .process import say
from .serving import GROUP, HOME, KV_MIB, NAME, PODS, Serving
from .trainer import Trainer


def test_both_replicas_serve_and_none_had_to_be_restarted(serving: Serving) -> None:
    assert serving.ready() == PODS
    assert len(serving.tokens()) == 8
    assert serving.restarts() == 0
    status = serving.status()
    assert [each["phase"] for each in status["members"]] == ["Running", "Running"]
    # What it says of their memory is what the kernel says, but for what a worker maps and does not own.
    for each in status["members"]:
        assert each["device"][0]["usedMiB"] == pytest.approx(serving.anonymous_mib(each["name"]), rel=0.1)


def test_a_trainers_job_borrows_and_gives_back_three_times(serving: Serving, images: Images) -> None:
    before = serving.tokens()
    awake = {name: serving.anonymous_mib(name) for name in PODS}
    apply(trainer.job("trainer", HOME, images.ebbtide.name, GROUP, turns=3))
    job = Trainer("trainer", HOME)
    for turn in range(3):
        lent = job.wait("lend", turn)
        serving.wait("Lent", 0)
        told = {each["member"]: each["result"]["devices"][0]["freedMiB"] for each in lent["result"]["members"]}
        freed = {name: awake[name] - serving.anonymous_mib(name) for name in PODS}
        assert min(freed.values()) >= KV_MIB
        assert told == pytest.approx(freed, rel=0.05)
        back = job.give_back(turn)
        assert all(each["result"]["canary"]["ok"] for each in back["result"]["members"])
        cgroups = ", ".join(f"{name} {mib:.0f}" for name, mib in freed.items())
        say(f"turn {turn}: lend {lent['ms']} ms, reclaim {back['ms']} ms, MiB freed by the cgroups: {cgroups}")
    serving.wait("Serving", 2)
    assert serving.tokens() == before
    assert serving.restarts() == 0


def test_power_puts_it_to_sleep_and_wakes_it(serving: Serving) -> None:
    before = serving.tokens()
    serving.patch(power="Asleep")
    serving.wait("Asleep", 0)
    assert sum(serving.anonymous_mib(name) for name in PODS) < 2 * 1.5 * KV_MIB
    serving.patch(power="Awake")
    serving.wait("Serving", 2)
    assert serving.tokens() == before


def test_scaled_to_zero_it_sleeps_and_keeps_its_pods(serving: Serving) -> None:
    made = {each["metadata"]["uid"] for each in serving.pods()}
    for count, phase in ((0, "Asleep"), (1, "Serving"), (2, "Serving")):
        kubectl("scale", "isv", NAME, "-n", HOME, f"--replicas={count}")
        serving.wait(phase, count)
        assert serving.ready() == PODS[:count]
    assert {each["metadata"]["uid"] for each in serving.pods()} == made
    assert serving.restarts() == 0
