"""Who may hold the memory of a lost lease on a cluster: from the caller's token to the pods that have not ended."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage
from ebbtide_operator.commands import Asked
from ebbtide_operator.drive.store import decode, lost_record
from ebbtide_operator.gateway.headers import asked
from ebbtide_operator.kube.auth import Authenticator, Caller
from ebbtide_operator.kube.gateway import Gateway, pod_of
from ebbtide_operator.kube.holders import holders_of
from ebbtide_operator.kube.kinds import PODS, ApiError
from ebbtide_operator.kube.leasing import RECORD, lease_name
from ebbtide_operator.kube.observe import Enrolled
from ebbtide_operator.plan import ENGINE, GroupRecord, LeaseRecord, PodRef
from starlette.requests import Request

from tests.unit.plan.sim import Sim
from tests.unit.plan.test_leases import lent

from .fake_api import FakeApi
from .given import server
from .test_driver import Stage as Driven
from .test_driver import play as play_driver
from .test_space import NS, Stage
from .test_space import play as play_space

LABEL = {"ebbtide.dev/borrows": "actor"}
OWN = PodRef(namespace=NS, name="trainer-x1", uid="u1")
TRAINER = "system:serviceaccount:models:trainer"
BOUND = {"authentication.kubernetes.io/pod-name": ["trainer-x1"], "authentication.kubernetes.io/pod-uid": ["u1"]}


def put(api: FakeApi, pod: PodRef, phase: str = "Running", labels: dict[str, str] | None = None) -> None:
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": labels or {}}
    api.put(PODS, {"metadata": metadata, "status": {"phase": phase}})


def lost(pod: PodRef | None = OWN, *queue: PodRef) -> GroupRecord:
    lease = LeaseRecord(id="l1", holder="t", stage=LeaseStage.OWNER_LOST, epoch=4, ttl_seconds=1, pod=pod)
    waiting = tuple(LeaseRecord(id=one.uid, holder=one.name, ttl_seconds=30, pod=one) for one in queue)
    return GroupRecord(group="actor", epoch=4, owner="t", lease=lease, queue=waiting)


def seen(api: FakeApi, record: GroupRecord) -> list[str]:
    view = holders_of(api, NS, record)
    assert (view.alive, view.used_mib) == ((True, None) if view.pods else (False, 0.0))
    return [pod.uid for pod in view.pods]


# pods


@pytest.mark.parametrize("labels", [LABEL, {}])
@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown", ""])
def test_the_pod_that_asked_holds_its_memory_until_it_ends_whatever_its_labels(phase: str, labels: Any) -> None:
    api = FakeApi()
    put(api, OWN, phase, labels)
    assert seen(api, lost()) == ["u1"]
    for ended in ("Succeeded", "Failed"):
        put(api, OWN, ended, labels)
        assert seen(api, lost()) == []


def test_a_pod_that_is_gone_holds_nothing_and_neither_does_another_one_of_its_name() -> None:
    api = FakeApi()
    assert seen(api, lost()) == []
    put(api, OWN.model_copy(update={"uid": "later"}))
    assert seen(api, lost()) == []


def test_a_pod_of_the_same_name_elsewhere_is_another_pod() -> None:
    api, elsewhere = FakeApi(), OWN.model_copy(update={"namespace": "other"})
    put(api, elsewhere)
    assert seen(api, lost()) == []
    assert seen(api, lost(elsewhere)) == ["u1"]


@pytest.mark.parametrize("pod", [None, OWN])
def test_every_labelled_pod_may_be_a_part_of_the_trainer(pod: PodRef | None) -> None:
    """Rank 1 of a trainer whose rank 0 asked for the lease; or a trainer begun from outside of the cluster."""
    api = FakeApi()
    put(api, PodRef(namespace=NS, name="rank-1", uid="r1"), labels=LABEL)
    put(api, PodRef(namespace=NS, name="of-others", uid="o"), labels={"ebbtide.dev/borrows": "other"})
    put(api, PodRef(namespace="other", name="rank-2", uid="r2"), labels=LABEL)
    assert seen(api, lost(pod)) == ["r1"]
    put(api, PodRef(namespace=NS, name="rank-1", uid="r1"), "Failed", LABEL)
    assert seen(api, lost(pod)) == []


def test_of_a_lost_record_every_labelled_pod_may_be_the_holder() -> None:
    api = FakeApi()
    put(api, OWN, labels=LABEL)
    assert seen(api, lost_record("actor")) == ["u1"]


def test_a_namespace_that_the_operator_may_not_look_into_hides_a_pod_that_may_run() -> None:
    api, elsewhere = FakeApi(), OWN.model_copy(update={"namespace": "other"})
    refused = ApiError(403, "Forbidden", "pods is forbidden")
    found, calls = api.list, []

    def look(kind: Any, namespace: str, labels: str = "", fields: str = "") -> Any:
        calls.append(namespace)
        if namespace == "other":
            raise refused
        return found(kind, namespace, labels, fields)

    api.list = look  # type: ignore[method-assign]
    view = holders_of(api, NS, lost(elsewhere))
    assert (view.alive, view.used_mib, view.pods) == (True, None, (elsewhere,))
    assert view.note == "The operator may not look for it: 403 Forbidden: pods is forbidden"
    assert calls == [NS, "other"]


def test_an_api_server_that_is_silent_says_nothing_of_pods() -> None:
    api = FakeApi(fail={"list": [ApiError(0, "Timeout", "nobody")]})
    with pytest.raises(ApiError):
        holders_of(api, NS, lost())


def look(api: FakeApi, sim: Sim) -> None:
    """Let some seconds pass with what the API server says of pods."""
    for _ in range(20):
        sim.trainer = holders_of(api, NS, sim.record) if sim.stage is LeaseStage.OWNER_LOST else None
        sim.step()


def test_a_lost_holder_whose_pod_runs_is_followed_by_nobody_until_that_ends() -> None:
    """Each replica's device has room for its engine beside what was measured of the trainer: nothing."""
    api, sim = FakeApi(), lent(pod=OWN)
    sim.servers["chat"] = replace(sim.servers["chat"], apart=True)
    put(api, OWN)
    sim.now += 31
    look(api, sim)
    assert (sim.stage, sim.record.owner, sim.phases) == (LeaseStage.OWNER_LOST, "trainer", {Phase.ASLEEP})
    put(api, OWN, "Failed")
    look(api, sim)
    assert (sim.record.owner, sim.phases) == (ENGINE, {Phase.RUNNING})


def test_the_jobs_next_pod_that_waits_in_the_queue_ends_the_wait_for_the_last_one() -> None:
    api, sim = FakeApi(), lent(pod=OWN)
    following = PodRef(namespace=NS, name="trainer-x2", uid="u2")
    put(api, OWN, labels=LABEL)
    put(api, following, labels=LABEL)
    sim.now += 31
    sim.acquire("l2", holder="next", pod=following)
    look(api, sim)
    assert sim.stage is LeaseStage.OWNER_LOST
    put(api, OWN, "Failed", LABEL)
    look(api, sim)
    assert sim.record.lease is not None
    assert sim.record.lease.pod == following


@pytest.mark.parametrize(("phases", "alive"), [([], False), (["Running"], True), (["Succeeded", "Failed"], False)])
def test_a_lost_holder_is_alive_while_one_of_its_pods_is(phases: list[str], alive: bool) -> None:
    async def scene(stage: Driven) -> None:
        for number, phase in enumerate(phases):
            made = stage.put_pod(f"trainer-{number}", **{"ebbtide.dev/borrows": "actor"})
            stage.api.put(PODS, {**made, "status": {"phase": phase}})
        lost = LeaseRecord(id="l1", holder="t", stage=LeaseStage.OWNER_LOST, ttl_seconds=1, need_mib=100)
        record = GroupRecord(group="actor", lease=lost)
        trainer = await stage.driver.trainer(record)
        assert trainer is not None
        assert (trainer.alive, trainer.used_mib) == (alive, None if alive else 0)
        assert await stage.driver.trainer(record.with_lease(stage=LeaseStage.LENT)) is None
        assert await stage.driver.trainer(GroupRecord(group="actor")) is None

    play_driver(scene)


# who asked


@pytest.mark.parametrize(
    ("name", "extra", "pod"),
    [
        (TRAINER, BOUND, OWN),
        (TRAINER, {}, None),
        (TRAINER, {"authentication.kubernetes.io/pod-name": ["trainer-x1"]}, None),
        ("someone@example.org", BOUND, None),
    ],
)
def test_a_callers_pod_is_the_one_that_its_token_is_bound_to(name: str, extra: Any, pod: PodRef | None) -> None:
    assert pod_of(Caller(name, extra={key: tuple(values) for key, values in extra.items()})) == pod


def test_no_header_says_which_pod_a_caller_is() -> None:
    scope = {"type": "http", "headers": [(b"ebbtide.pod", b"x"), (b"ebbtide-pod", b"x")], "ebbtide.pod": "x"}
    assert asked(Request(scope)) == Asked()
    assert asked(Request({**scope, "ebbtide.pod": OWN})) == Asked(pod=OWN)


USERS = {"bound": {"username": TRAINER, "extra": BOUND}, "loose": {"username": TRAINER}}


def answers(user: str) -> dict[str, Any]:
    def review(body: Any) -> Any:
        return {"status": {"authenticated": True, "user": USERS[user], "audiences": body["spec"]["audiences"]}}

    return {"tokenreviews": review, "localsubjectaccessreviews": lambda _body: {"status": {"allowed": True}}}


def through_the_gateway(folder: Path, user: str, scene: Callable[[Stage, httpx2.AsyncClient], Awaitable[None]]) -> None:
    api = FakeApi(answers=answers(user))

    async def play(stage: Stage) -> None:
        gateway = Gateway(lambda _namespace: stage.space, Authenticator(api), Enrolled())
        transport = httpx2.ASGITransport(gateway)
        async with httpx2.AsyncClient(transport=transport, base_url="http://g", trust_env=False) as client:
            client.headers["Authorization"] = "Bearer t"
            stage.put(server())
            await scene(stage, client)

    play_space(folder, play, api)


@pytest.mark.parametrize(("user", "pod"), [("bound", OWN), ("loose", None)])
def test_the_lease_of_a_caller_names_its_pod_durably(tmp_path: Path, user: str, pod: PodRef | None) -> None:
    async def scene(stage: Stage, client: httpx2.AsyncClient) -> None:
        answer = await client.post("/v1/groups/actor/lease", json={"holder": "t", "ttlSeconds": 30})
        assert answer.status_code == 201, answer.text
        assert "pod" not in answer.json()
        kept = stage.api.objects["leases", NS, lease_name("actor")]["metadata"]["annotations"][RECORD]
        lease = decode(kept.encode()).lease
        assert lease is not None
        assert lease.pod == pod

    through_the_gateway(tmp_path, user, scene)


def test_a_lost_holders_pod_is_asked_for_by_the_loop(tmp_path: Path) -> None:
    async def scene(stage: Stage, client: httpx2.AsyncClient) -> None:
        group = stage.space.groups["actor"]
        put(stage.api, OWN)
        async with group.lock:
            await stage.space.save(group, lost())
        trainer = await stage.space.trainer(group)
        assert trainer is not None
        assert trainer.pods == (OWN,)
        state = (await client.get("/v1/groups/actor")).json()
        assert (state["owner"], state["lease"]["stage"]) == ("t", "OwnerLost")
        group.record = group.record.with_lease(stage=LeaseStage.LENT)
        assert await stage.space.trainer(group) is None

    through_the_gateway(tmp_path, "bound", scene)
