"""The objects of an InferenceServer: as the golden files hold them, and each promise of theirs by itself.

EBBTIDE_GOLDEN=write writes the golden files anew; read the difference before committing it.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ebbtide_api.member import MemberConfig, keep_member, load_member
from ebbtide_api.server import InferenceServer
from ebbtide_operator.kube.children import children, digest
from ebbtide_operator.kube.children.containers import ENDING_S, LONGEST_DRAIN_S, PROPAGATION_S
from ebbtide_operator.kube.names import AGENT_PORT, DIGEST, UID

from .given import SITE, at, server

GOLDEN = Path(__file__).parent / "golden"
SERVERS = {
    "cpu": server(replicas=2),
    "gpu-claim": server(
        "chat",
        model={"source": "/models/chat"},
        parallelism={"tensor": 2},
        colocation={"devices": {"claim": "four-gpus"}},
        sleep={"drain": {"timeout": "90s"}},
    ),
    "gpu-env": server(
        engine={
            "image": "vllm",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}, {"name": "X", "value": "y"}],
        },
        colocation={"devices": {"env": "NVIDIA_VISIBLE_DEVICES"}},
    ),
}


def made(which: InferenceServer) -> dict[str, Any]:
    return {f"{child['kind']}/{at(child, 'metadata.name')}": child for child in children(which, SITE)}


def stateful_set(**spec: Any) -> Any:
    return made(server(**spec))["StatefulSet/tiny"]


def pod(**spec: Any) -> Any:
    return at(stateful_set(**spec), "spec.template.spec")


def containers(spec: Any) -> Iterator[Any]:
    yield from spec["initContainers"]
    yield from spec["containers"]


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_children_are_as_the_golden_file_has_them(name: str) -> None:
    path, found = GOLDEN / f"{name}.yaml", yaml.safe_dump_all(children(SERVERS[name], SITE), sort_keys=False)
    if os.environ.get("EBBTIDE_GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text()


def test_pods_are_made_after_everything_that_they_read() -> None:
    assert list(made(server()))[-1] == "StatefulSet/tiny"
    assert len(made(server())) == 6


def test_the_same_spec_gives_the_same_bytes_and_another_spec_another_digest() -> None:
    once, again = (json.dumps(children(server(), SITE)) for _ in range(2))
    assert once == again
    for child, other in zip(
        children(server(), SITE), children(server(engine={"image": "other", "port": 9000}), SITE), strict=True
    ):
        same = child["kind"] == "PodDisruptionBudget"
        assert (at(child, "metadata.annotations")[DIGEST] == at(other, "metadata.annotations")[DIGEST]) is same


def test_a_digest_is_of_everything_but_itself() -> None:
    for child in children(server(), SITE):
        metadata = {name: value for name, value in at(child, "metadata").items() if name != "annotations"}
        assert at(child, "metadata.annotations")[DIGEST] == digest({**child, "metadata": metadata})


@pytest.mark.parametrize("which", SERVERS.values(), ids=SERVERS)
def test_every_child_goes_with_its_server(which: InferenceServer) -> None:
    for child in made(which).values():
        (owner,) = at(child, "metadata.ownerReferences")
        assert owner["uid"] == which.metadata.uid
        assert owner["controller"] is True
        assert "blockOwnerDeletion" not in owner
        assert at(child, "metadata.namespace") == "models"


# Pod Security Standards, restricted


@pytest.mark.parametrize("which", SERVERS.values(), ids=SERVERS)
def test_pods_are_restricted(which: InferenceServer) -> None:
    spec = at(made(which)[f"StatefulSet/{which.name}"], "spec.template.spec")
    assert at(spec, "securityContext.runAsNonRoot") is True
    assert at(spec, "securityContext.runAsUser") == UID
    assert at(spec, "securityContext.seccompProfile.type") == "RuntimeDefault"
    for container in containers(spec):
        assert at(container, "securityContext.allowPrivilegeEscalation") is False
        assert at(container, "securityContext.capabilities.drop") == ["ALL"]
        assert not any("hostPort" in port for port in container.get("ports", []))
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "configMap", "projected"}


def test_only_the_agent_has_tokens() -> None:
    spec = pod()
    assert spec["automountServiceAccountToken"] is False
    holders = [
        each["name"] for each in containers(spec) if "ebbtide-token" in {m["name"] for m in each["volumeMounts"]}
    ]
    assert holders == ["agent"]
    audiences = [
        at(source, "serviceAccountToken").get("audience")
        for source in at(spec, "volumes.ebbtide-token.projected.sources")[:2]
    ]
    assert audiences == ["ebbtide-gateway", None]


def test_containers_of_ours_cannot_write_to_their_image() -> None:
    read_only = [
        each["name"] for each in containers(pod()) if at(each, "securityContext").get("readOnlyRootFilesystem")
    ]
    assert read_only == ["payload", "agent"]


# Lifecycle


def test_the_agent_is_a_native_sidecar_that_starts_after_the_payload() -> None:
    payload, agent = pod()["initContainers"]
    assert (payload["name"], "restartPolicy" in payload) == ("payload", False)
    assert (agent["name"], agent["restartPolicy"]) == ("agent", "Always")


def test_the_agent_decides_nothing_of_readiness() -> None:
    assert "readinessProbe" not in at(pod(), "initContainers.agent")


def test_the_engine_is_probed_through_its_launcher() -> None:
    engine = at(pod(), "containers.engine")
    probes = {name: at(engine, f"{name}.httpGet") for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: (get["path"], get["port"]) for name, get in probes.items()} == {
        "startupProbe": ("/startup", 7413),
        "livenessProbe": ("/live", 7413),
        "readinessProbe": ("/ready", 7413),
    }


@pytest.mark.parametrize(("timeout", "drain"), [("30s", 30), ("1.5s", 2), ("24h", LONGEST_DRAIN_S)])
def test_the_grace_period_holds_all_that_happens_in_it(timeout: str, drain: int) -> None:
    spec = pod(sleep={"drain": {"timeout": timeout}})
    assert spec["terminationGracePeriodSeconds"] == PROPAGATION_S + drain + ENDING_S
    assert at(spec, "containers.engine.env.EBBTIDE_DRAIN_S")["value"] == str(drain)
    assert at(spec, "containers.engine.lifecycle.preStop.sleep.seconds") == PROPAGATION_S


def test_the_agent_sees_the_processes_whose_end_it_must_notice() -> None:
    assert pod()["shareProcessNamespace"] is True
    patched = pod(template={"spec": {"shareProcessNamespace": False}})
    assert patched["shareProcessNamespace"] is True


def test_the_launcher_answers_where_the_kubelet_asks() -> None:
    assert at(pod(), "containers.engine.env.EBBTIDE_PROBE_PORT")["value"] == "7413"


def test_pods_are_replaced_by_us_alone() -> None:
    spec = stateful_set()["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert spec["podManagementPolicy"] == "Parallel"


def test_sleepers_do_not_block_the_drain_of_a_node() -> None:
    assert at(made(server())["PodDisruptionBudget/tiny"], "spec.unhealthyPodEvictionPolicy") == "AlwaysAllow"


def test_replicas_can_be_held_while_the_spec_wants_others() -> None:
    held = children(server(replicas=3), SITE, replicas=2)[-1]
    assert at(held, "spec.replicas") == 2


# Memory


def test_memory_volumes_are_limited_and_counted_into_the_limits() -> None:
    spec = pod()
    assert at(spec, "volumes.ebbtide-memory.emptyDir") == {"medium": "Memory", "sizeLimit": "1040Mi"}
    # Who writes a page is charged for it: parked weights by the engine, copies of published weights by the agent.
    assert at(spec, "containers.engine.resources.limits.memory") == "5648Mi"
    assert at(spec, "initContainers.agent.resources.limits.memory") == "1424Mi"


def test_a_lent_engine_asks_the_scheduler_for_no_device_memory() -> None:
    assert at(pod(), "containers.engine.resources.requests.memory") == "2064Mi"


def test_without_a_limit_for_host_memory_nothing_is_limited_by_us() -> None:
    spec = pod(colocation={"devices": {"cpu": {"memory": "4Gi"}}})
    assert at(spec, "volumes.ebbtide-memory.emptyDir") == {"medium": "Memory"}
    assert "limits" not in at(spec, "containers.engine.resources")
    assert "limits" not in at(spec, "initContainers.agent.resources")


@pytest.mark.parametrize(
    ("devices", "tensor", "shm"),
    [
        ({"claim": "gpus"}, 1, None),
        ({"claim": "gpus"}, 2, "1Gi"),
        # A CPU engine's only rank is a process of its own, too.
        ({"cpu": {"memory": "4Gi"}}, 1, "512Mi"),
        ({"cpu": {"memory": "4Gi"}}, 2, "1Gi"),
    ],
)
def test_ranks_get_shared_memory_to_talk_over(devices: Any, tensor: int, shm: str | None) -> None:
    spec = pod(parallelism={"tensor": tensor}, colocation={"devices": devices, "hostMemoryLimit": "1Gi"})
    limits = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if volume["name"] == "ebbtide-shm"]
    mounts = [mount["mountPath"] for mount in at(spec, "containers.engine.volumeMounts")]
    assert limits == ([shm] if shm else [])
    assert ("/dev/shm" in mounts) is (shm is not None)


# Devices


def test_a_claim_is_used_by_the_engine_alone() -> None:
    spec = pod(colocation={"devices": {"claim": "gpus"}})
    assert spec["resourceClaims"] == [{"name": "ebbtide-devices", "resourceClaimName": "gpus"}]
    users = [each["name"] for each in containers(spec) if "claims" in each.get("resources", {})]
    assert users == ["engine"]


def test_the_variable_that_names_devices_is_there_before_any_process() -> None:
    spec = at(made(SERVERS["gpu-env"])["StatefulSet/tiny"], "spec.template.spec")
    assert at(spec, "containers.engine.env.NVIDIA_VISIBLE_DEVICES")["value"] == "0"
    assert "X" not in {variable["name"] for variable in at(spec, "containers.engine.env")}


# Network


def test_a_sleeper_keeps_its_name_and_gets_no_clients() -> None:
    services = made(server())
    assert at(services["Service/tiny-members"], "spec.publishNotReadyAddresses") is True
    assert at(services["Service/tiny-members"], "spec.clusterIP") == "None"
    assert "publishNotReadyAddresses" not in at(services["Service/tiny"], "spec")
    assert [port["name"] for port in at(services["Service/tiny"], "spec.ports")] == ["http"]


def test_agents_are_open_to_the_operator_and_the_groups_trainers_alone() -> None:
    clients, control = at(made(server())["NetworkPolicy/tiny"], "spec.ingress")
    assert "from" not in clients
    assert control["ports"] == [{"port": AGENT_PORT, "protocol": "TCP"}]
    operator, trainers = control["from"]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ebbtide-system"}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "ebbtide"}
    assert trainers == {"podSelector": {"matchLabels": {"ebbtide.dev/borrows": "actor"}}}


def test_the_longest_name_fits_every_child() -> None:
    for child in children(server("a" * 52), SITE):
        assert len(at(child, "metadata.name")) <= 63


# What members are told


def test_each_pod_reads_the_same_file_and_knows_itself(tmp_path: Path) -> None:
    which = server(replicas=2)
    path = tmp_path / "member.json"
    path.write_text(at(made(which)["ConfigMap/tiny-member"], "data")["member.json"])
    env = at(made(which)["StatefulSet/tiny"], "spec.template.spec.containers.engine.env")
    environ = {
        "EBBTIDE_POD_NAME": "tiny-1",
        "EBBTIDE_POD_UID": "uid-1",
        "EBBTIDE_MEMBER_DIGEST": at(env, "EBBTIDE_MEMBER_DIGEST")["value"],
    }
    found = load_member(path, environ)
    assert isinstance(found, MemberConfig)
    assert (found.name, found.uid, found.ordinal, found.server, found.group) == ("tiny-1", "uid-1", 1, "tiny", "actor")
    assert (found.device_budget, found.host_memory_limit) == (4 << 30, 1 << 30)


def test_a_pod_refuses_a_file_that_it_was_not_made_for(tmp_path: Path) -> None:
    path = tmp_path / "member.json"
    path.write_text(at(made(server())["ConfigMap/tiny-member"], "data")["member.json"])
    with pytest.raises(ValueError, match="must be replaced"):
        load_member(path, {"EBBTIDE_POD_NAME": "tiny-0", "EBBTIDE_MEMBER_DIGEST": "0" * 64})


def test_a_container_that_restarts_after_a_change_goes_on_with_what_its_pod_was_made_for(tmp_path: Path) -> None:
    """The server is lent, so its pod is not replaced; its ConfigMap is the new one already."""
    path, home = tmp_path / "member.json", tmp_path / "home"

    def told(**spec: Any) -> str:
        told = json.loads(at(made(server(**spec))["ConfigMap/tiny-member"], "data")["member.json"])
        return json.dumps({**told, "home": str(home)})

    def environ(text: str) -> dict[str, str]:
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"EBBTIDE_POD_NAME": "tiny-1", "EBBTIDE_POD_UID": "u", "EBBTIDE_MEMBER_DIGEST": digest}

    old, new = told(), told(sleep={"level": "Discarded"}, engine={"image": "i", "extraArgs": ["--dtype=float32"]})
    born = environ(old)
    path.write_text(old)
    home.mkdir()
    first = load_member(path, born)
    keep_member(path, first.home, born)
    path.write_text(new)
    keep_member(path, first.home, born)
    again = load_member(path, born)
    assert again == first
    assert (again.name, again.uid, again.extra_args) == ("tiny-1", "u", [])
    assert [kept.name for kept in home.iterdir()] == ["born.json"]
    # What somebody else kept there is not believed, and a pod of the newer template takes the newer file.
    assert load_member(path, environ(new)).extra_args == ["--dtype=float32"]
    (home / "born.json").write_text(new + " ")
    with pytest.raises(ValueError, match="must be replaced"):
        load_member(path, born)
    for nonsense in ("[]", "{", '{"home": 7}', '{"home": "/nowhere"}'):
        path.write_text(nonsense)
        with pytest.raises(ValueError, match="must be replaced"):
            load_member(path, born)


@pytest.mark.parametrize("environ", [{}, {"EBBTIDE_MEMBER_DIGEST": "0" * 64}])
def test_only_what_a_pod_was_made_for_is_kept(tmp_path: Path, environ: dict[str, str]) -> None:
    path = tmp_path / "member.json"
    path.write_text("{}")
    keep_member(path, str(tmp_path), environ)
    assert [each.name for each in tmp_path.iterdir()] == ["member.json"]


@pytest.mark.parametrize("name", ["other-0", "tiny", "tiny-x", "tiny-1-0"])
def test_a_pod_of_another_server_reads_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "member.json"
    path.write_text(at(made(server())["ConfigMap/tiny-member"], "data")["member.json"])
    with pytest.raises(ValueError, match="no pod of server 'tiny'"):
        load_member(path, {"EBBTIDE_POD_NAME": name})


def test_without_a_cluster_the_file_says_it_all(tmp_path: Path) -> None:
    path = tmp_path / "member.json"
    path.write_text(at(made(server())["ConfigMap/tiny-member"], "data")["member.json"])
    assert load_member(path, {}).name == "tiny-0"
