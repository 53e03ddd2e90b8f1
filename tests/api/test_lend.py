"""A lend on a real API server: pods that are driven over TLS, callers who are known and allowed, and who are not."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ebbtide_api.errors import EbbtideError
from ebbtide_api.state import Phase
from ebbtide_runtime.agent.cluster import Enroller, Identity, OperatorToken, Place

from tests.api.agents import Member, client, member, pod_token
from tests.api.cluster import NAMESPACE, Kubectl, OperatorProcess, operator, soon
from tests.api.given import server

NAME = "lent"
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "borrower", "namespace": NAMESPACE},
    "rules": [
        {"apiGroups": ["ebbtide.dev"], "resources": ["inferenceservers/lend"], "verbs": ["create"]},
        {"apiGroups": ["ebbtide.dev"], "resources": ["inferenceservers"], "verbs": ["get"]},
    ],
}


@dataclass
class Scene:
    """A server of two members that serve, and callers of the gateway."""

    kubectl: Kubectl
    operator: OperatorProcess
    members: list[Member]
    tls: Path
    folder: Path

    def caller(self, account: str, *more: str) -> httpx2.Client:
        return client(self.tls, self.operator.gateway, self.kubectl.token(account, NAMESPACE, *more) if account else "")

    def trainer(self) -> httpx2.Client:
        return self.caller("trainer", "--audience=ebbtide-gateway")

    def enrol(self, which: Member) -> None:
        with client(self.tls, self.operator.gateway, pod_token(self.kubectl, which.fake.name)) as agent:
            answer = agent.post("/v1/enrol", json={"certificate": which.certificate})
            assert answer.status_code == 200, answer.text

    def status(self) -> Any:
        return self.kubectl.get("isv", NAME).get("status", {})

    def phases(self) -> set[Phase]:
        return {each.fake.phase for each in self.members}


@pytest.fixture(scope="module")
def scene(kubectl: Kubectl, tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("lend")
    for account in ("trainer", "stranger"):
        kubectl.ok("create", "serviceaccount", account, "-n", NAMESPACE)
    kubectl.ok("apply", "-f", "-", given=ROLE)
    subject = f"--serviceaccount={NAMESPACE}:trainer"
    kubectl.ok("create", "rolebinding", "borrower", "-n", NAMESPACE, "--role=borrower", subject)
    with operator(kubectl, folder, tls, "op-lend") as running, ExitStack() as stack:
        running.wait_ready()
        kubectl.ok("create", "-f", "-", given=server(NAME, replicas=2))
        soon(lambda: {f"{NAME}-0", f"{NAME}-1"} <= set(kubectl.names("pods")))
        members = [
            stack.enter_context(member(kubectl, f"{NAME}-{n}", f"127.0.7.{n + 1}", folder, NAME)) for n in range(2)
        ]
        made = Scene(kubectl, running, members, tls, folder)
        for each in members:
            made.enrol(each)
        soon(lambda: made.phases() == {Phase.RUNNING}, 30)
        yield made
        assert running.end() == 0
        assert running.forbidden() == []


def finish(gateway: httpx2.Client, answer: httpx2.Response) -> Any:
    """Return an operation when it has ended."""
    assert answer.status_code in (200, 202), answer.text
    operation = answer.json()
    deadline = time.monotonic() + 30
    while operation["status"] == "Running":
        assert time.monotonic() < deadline, operation
        operation = gateway.get(f"/v1/operations/{operation['id']}", params={"wait": 5}).json()
    return operation


def borrow(gateway: httpx2.Client) -> Any:
    lease = gateway.post(f"/v1/groups/{NAME}/lease", json={"holder": "trainer", "ttlSeconds": 60})
    assert lease.status_code in (200, 201, 202), lease.text
    headers = {"Ebbtide-Epoch": str(lease.json()["epoch"])}
    lent = finish(gateway, gateway.post(f"/v1/groups/{NAME}:lend", json={}, headers=headers))
    assert lent["status"] == "Done", lent
    return lease.json()


def give_back(gateway: httpx2.Client, lease: Any) -> None:
    headers = {"Ebbtide-Epoch": str(lease["epoch"])}
    back = finish(gateway, gateway.post(f"/v1/groups/{NAME}:reclaim", json={}, headers=headers))
    assert back["status"] == "Done", back


def test_members_are_granted_their_device_and_serve(scene: Scene) -> None:
    soon(lambda: scene.status().get("phase") == "Serving")
    status = scene.status()
    assert (status["replicas"], status["awakeReplicas"], status["owner"]) == (2, 2, "engine")
    assert {each["phase"] for each in status["members"]} == {"Running"}


def test_agents_get_a_token_for_their_server_alone_and_the_leaders_epoch(scene: Scene) -> None:
    uid = scene.kubectl.get("isv", NAME)["metadata"]["uid"]
    headers = scene.members[0].headers[-1]
    body = headers["authorization"].removeprefix("Bearer ").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["aud"] == [f"ebbtide:{uid}"]
    assert claims["sub"] == "system:serviceaccount:ebbtide-system:ebbtide-operator"
    assert int(headers["ebbtide-leader"]) >= 1


def test_a_real_agent_enrols_and_knows_the_operator_by_the_clusters_keys(scene: Scene) -> None:
    folder = scene.folder / "tokens"
    folder.mkdir()
    config = json.loads(scene.kubectl.ok("config", "view", "--raw", "--minify", "-o", "json"))
    cluster = config["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(Path(cluster["certificate-authority"]).read_bytes())
    (folder / "api").write_text(scene.kubectl.token("ebbtide-engine", NAMESPACE))
    (folder / "gateway").write_text(pod_token(scene.kubectl, f"{NAME}-0"))
    uid = scene.kubectl.get("isv", NAME)["metadata"]["uid"]
    callers = OperatorToken(f"ebbtide:{uid}", "system:serviceaccount:ebbtide-system:ebbtide-operator")
    gateway = f"https://127.0.0.1:{scene.operator.gateway}"
    place = Place("", "", gateway, scene.tls / "ca.crt", folder, cluster["server"])
    identity = Identity(folder, folder / "tls.crt")
    identity.certificate.write_text(scene.members[0].certificate)
    enroller = Enroller(place, identity, callers)
    enroller.fetch()
    callers.check(scene.members[0].headers[-1]["authorization"])
    with pytest.raises(EbbtideError, match="Audience"):
        callers.check(f"Bearer {pod_token(scene.kubectl, f'{NAME}-0')}")
    enroller.enrol()


def test_memory_is_lent_and_comes_back(scene: Scene) -> None:
    with scene.trainer() as gateway:
        lease = borrow(gateway)
        assert scene.phases() == {Phase.ASLEEP}
        kept = scene.kubectl.get("lease", f"ebbtide-group-{NAME}")["spec"]
        assert (kept["holderIdentity"], kept["leaseTransitions"]) == ("trainer", lease["epoch"])
        soon(lambda: scene.status()["phase"] == "Lent")
        assert scene.status()["owner"] == "trainer"
        give_back(gateway, lease)
        assert scene.phases() == {Phase.RUNNING}
        soon(lambda: scene.status()["owner"] == "engine")
        late = gateway.post(f"/v1/groups/{NAME}:lend", json={}, headers={"Ebbtide-Epoch": str(lease["epoch"])})
        assert late.status_code == 412


def test_nothing_of_a_server_changes_while_it_is_lent(scene: Scene) -> None:
    with scene.trainer() as gateway:
        lease = borrow(gateway)
        before = scene.kubectl.get("statefulset", NAME)["metadata"]["resourceVersion"]
        uids = [scene.kubectl.get("pod", f"{NAME}-{n}")["metadata"]["uid"] for n in range(2)]
        change = {"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}}
        scene.kubectl.ok("patch", "isv", NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(change))
        soon(lambda: scene.status()["observedGeneration"] == 2)
        assert scene.kubectl.get("statefulset", NAME)["metadata"]["resourceVersion"] == before
        undo = {"spec": {"template": None}}
        scene.kubectl.ok("patch", "isv", NAME, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(undo))
        soon(lambda: scene.status()["observedGeneration"] == 3)
        give_back(gateway, lease)
        assert uids == [scene.kubectl.get("pod", f"{NAME}-{n}")["metadata"]["uid"] for n in range(2)]


def test_a_sleep_by_spec_and_by_scale(scene: Scene) -> None:
    scene.kubectl.ok("scale", "isv", NAME, "-n", NAMESPACE, "--replicas=0")
    soon(lambda: scene.phases() == {Phase.ASLEEP})
    soon(lambda: (scene.status()["phase"], scene.status()["awakeReplicas"]) == ("Asleep", 0))
    scene.kubectl.ok("scale", "isv", NAME, "-n", NAMESPACE, "--replicas=2")
    soon(lambda: scene.phases() == {Phase.RUNNING})


def test_an_operator_that_dies_while_memory_is_lent_loses_no_owner(scene: Scene) -> None:
    with scene.trainer() as gateway:
        lease = borrow(gateway)
    scene.operator.kill()
    with operator(scene.kubectl, scene.folder / "second", scene.tls, "op-second") as second:
        second.wait_ready()
        scene.operator.gateway, scene.operator.health = second.gateway, second.health
        for each in scene.members:
            scene.enrol(each)
        assert scene.phases() == {Phase.ASLEEP}
        with scene.trainer() as gateway:
            soon(lambda: gateway.get(f"/v1/groups/{NAME}").status_code == 200)
            state = gateway.get(f"/v1/groups/{NAME}").json()
            assert (state["owner"], state["epoch"], state["lease"]["stage"]) == ("trainer", lease["epoch"], "Lent")
            soon(lambda: all(one["phase"] == "Asleep" for one in scene.status()["members"]))
            give_back(gateway, lease)
        assert scene.phases() == {Phase.RUNNING}
        assert second.end() == 0
        assert second.forbidden() == []


# who may call: last, since these need no more than a gateway; it is the second operator's port by now


@pytest.fixture
def gateway_of(scene: Scene) -> Iterator[Scene]:
    with operator(scene.kubectl, scene.folder / "third", scene.tls, "op-third") as third:
        third.wait_ready()
        scene.operator.gateway = third.gateway
        yield scene
        assert third.end() == 0


def test_who_is_unknown_or_not_allowed_is_refused(gateway_of: Scene) -> None:
    path = f"/v1/groups/{NAME}/lease"
    asked = {"holder": "x"}
    with gateway_of.trainer() as trainer:
        soon(lambda: trainer.get(f"/v1/groups/{NAME}").status_code == 200)
    with gateway_of.caller("") as nobody:
        assert nobody.get("/health").status_code == 200
        assert nobody.post(path, json=asked).status_code == 401
    with gateway_of.caller("trainer") as for_another:  # the API server's own audience
        assert for_another.post(path, json=asked).json()["code"] == "UNAUTHENTICATED"
    with gateway_of.caller("stranger", "--audience=ebbtide-gateway") as stranger:
        refused = stranger.post(path, json=asked)
        assert refused.status_code == 403
        assert refused.json()["code"] == "FORBIDDEN"
        assert "inferenceservers/lend" in refused.json()["message"]
        assert stranger.get("/v1/groups").status_code == 403
    with gateway_of.trainer() as trainer:
        assert trainer.get("/v1/groups").status_code == 200
        assert trainer.get(f"/namespaces/{NAMESPACE}/v1/groups").status_code == 200
        assert trainer.get("/namespaces/elsewhere/v1/groups").status_code == 404
        assert trainer.post("/v1/shutdown").status_code == 404
        assert trainer.post("/v1/enrol", json={"certificate": "x"}).status_code == 403
