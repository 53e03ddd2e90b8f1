"""What people do to a server that runs: they read it, change it, make it smaller, and replace it by one of its name."""

from __future__ import annotations

from . import trainer
from .images import Images
from .kube import apply, get, kubectl, until
from .serving import GROUP, HOME, NAME, PODS, Serving
from .trainer import Trainer


def uids(serving: Serving) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in serving.pods()}


def test_people_read_it_well(serving: Serving) -> None:
    lines = kubectl("get", "isv", NAME, "-n", HOME).splitlines()
    assert lines[0].split() == ["NAME", "MODEL", "READY", "STATE", "AWAKE", "OWNER", "VERSION", "AGE"]
    assert lines[1].split()[:7] == [NAME, "/models/tiny", "True", "Serving", "2", "engine", "0"]
    explained = kubectl("explain", "isv.spec.sleep")
    assert all(word in explained for word in ("drain", "level", "settle", "How the server sleeps."))
    assert "Serving" in kubectl("describe", "isv", NAME, "-n", HOME).partition("Events:")[2]


def test_a_change_waits_while_lent_then_rolls_one_replica_at_a_time(serving: Serving, images: Images) -> None:
    old, tokens = uids(serving), serving.tokens()
    apply(trainer.job("borrow", HOME, images.ebbtide.name, GROUP, ttl=60))
    job = Trainer("borrow", HOME)
    job.wait("lend", 0)
    serving.wait("Lent", 0)
    engine = serving.document["spec"]["engine"]
    args = [each.replace("--max-num-seqs=8", "--max-num-seqs=4") for each in engine["extraArgs"]]
    serving.patch(engine={"extraArgs": args})
    generation = get("isv", NAME, "-n", HOME)["metadata"]["generation"]
    until("the change is seen", lambda: serving.status()["observedGeneration"] == generation, 30)
    assert uids(serving) == old, "nothing of it moves while its memory is somebody else's"
    job.give_back(0)
    fewest = roll(serving, old)
    assert fewest == 1, "one replica served all the time"
    assert serving.tokens() == tokens


def roll(serving: Serving, old: dict[str, str]) -> int:
    """Wait until every pod is another one and serves; return how many were ready when the fewest were."""
    ready = [2]

    def done() -> bool:
        names, now = serving.ready(), uids(serving)
        if set(now.values()) & set(old.values()):
            ready.append(len(names))
        return names == PODS and not set(now.values()) & set(old.values())

    serving.wait("Serving", 2)
    until("both replicas are new", done, 420)
    return min(ready)


def test_fewer_replicas_and_more_again(serving: Serving) -> None:
    kept = uids(serving)[PODS[0]]
    serving.patch(replicas=1)
    until("the second pod is gone", lambda: list(uids(serving)) == PODS[:1], 120)
    serving.wait("Serving", 1)
    serving.patch(replicas=2)
    serving.wait("Serving", 2, 300)
    assert uids(serving)[PODS[0]] == kept


def test_a_server_of_the_same_name_is_another_one(serving: Serving) -> None:
    old = uids(serving)
    first = get("isv", NAME, "-n", HOME)["metadata"]["uid"]
    kubectl("delete", "isv", NAME, "-n", HOME, "--wait=true", "--timeout=60s")
    apply(serving.document)
    assert get("isv", NAME, "-n", HOME)["metadata"]["uid"] != first
    serving.wait("Serving", 2, 420)
    assert not set(uids(serving).values()) & set(old.values())
    assert serving.status()["epoch"] >= 1
