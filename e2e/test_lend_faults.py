"""What a lend survives on a cluster: the end of the operator's pod, of an engine's, and of the trainer's."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from . import trainer
from .images import Images
from .kube import apply, get, kubectl, until
from .serving import GROUP, HOME, NAME, PODS, Serving
from .trainer import Trainer

OPERATOR = "app.kubernetes.io/component=operator"
LONG = 1000
"""Tokens of a request that a drain must wait for."""


@pytest.fixture
def borrow(images: Images) -> Trainer:
    """A trainer that borrows once."""
    apply(trainer.job("borrow", HOME, images.ebbtide.name, GROUP, ttl=10))
    return Trainer("borrow", HOME)


def phases(serving: Serving) -> dict[str, str]:
    return {each["name"]: each["phase"] for each in serving.status().get("members", [])}


def end_operator() -> None:
    kubectl("delete", "pod", "-n", HOME, "-l", OPERATOR, "--grace-period=0", "--force", "--wait=false")


def test_a_lend_goes_on_when_the_operators_pod_dies_in_it(serving: Serving, images: Images) -> None:
    with ThreadPoolExecutor() as pool:
        request = pool.submit(serving.tokens, LONG)
        until("the request is in", lambda: any(inflight(serving)), 30)
        apply(trainer.job("orphan", HOME, images.ebbtide.name, GROUP))
        job = Trainer("orphan", HOME)
        until("a drain begins", lambda: serving.status()["phase"] == "Lending", 30, every=0.1)
        end_operator()
        # What the gate let in is answered whole: nobody aborted it.
        assert len(request.result()) == LONG
    lent = job.wait("lend", 0)
    assert lent["result"]["abortedRequests"] == 0
    serving.wait("Lent", 0)
    end_operator()
    back = job.give_back(0)
    assert back["result"]["epoch"] == lent["result"]["epoch"] + 1
    serving.wait("Serving", 2)


def inflight(serving: Serving) -> list[int]:
    """Return the requests inside each member's gate, by its page."""
    code = "from ebbtide_runtime.native import Page; print(Page.open('/run/ebbtide/page').inflight())"
    return [int(serving.inside(name, code)) for name in PODS]


def test_an_engines_pod_that_dies_while_lent_waits_for_its_device(serving: Serving, borrow: Trainer) -> None:
    borrow.wait("lend", 0)
    serving.wait("Lent", 0)
    uid = get("pod", PODS[1], "-n", HOME)["metadata"]["uid"]
    kubectl("delete", "pod", PODS[1], "-n", HOME, "--grace-period=0", "--force")
    until("its replacement waits", lambda: phases(serving).get(PODS[1]) == "PendingDevice", 60)
    assert get("pod", PODS[1], "-n", HOME)["metadata"]["uid"] != uid
    assert serving.status()["phase"] == "Lent"
    borrow.give_back(0)
    serving.wait("Serving", 2, 120)


def test_a_trainer_that_dies_loses_the_device_after_its_ttl(serving: Serving, borrow: Trainer) -> None:
    before = serving.tokens()
    borrow.wait("lend", 0)
    serving.wait("Lent", 0)
    kubectl("delete", "pod", "-n", HOME, "-l", "job-name=borrow", "--grace-period=0", "--force")
    serving.wait("Serving", 2, 90)
    assert serving.status()["owner"] == "engine"
    assert serving.tokens() == before
    assert NAME in kubectl("get", "isv", "-n", HOME)
