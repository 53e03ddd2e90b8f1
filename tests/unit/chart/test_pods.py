"""Every pod of the chart passes the Pod Security Standard `restricted`, and writes nothing to its root."""

import copy

import pytest

from .rendering import SHAPES, Object, objects, pods

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def violations(spec: Object) -> set[str]:
    """Return what the standard forbids in a pod, and a root that can be written."""
    bad = {f"spec.{each}" for each in ("hostNetwork", "hostPID", "hostIPC") if spec.get(each)}
    bad |= {f"volume {each['name']}" for each in spec.get("volumes", []) if not set(each) - {"name"} <= VOLUMES}
    pod = spec.get("securityContext", {})
    for each in spec["containers"] + spec.get("initContainers", []):
        own = each.get("securityContext", {})
        merged = pod | own
        checks = {
            "runAsNonRoot": merged.get("runAsNonRoot") is True,
            "runAsUser": merged.get("runAsUser") != 0,
            "seccompProfile": merged.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "privileged": not own.get("privileged"),
            "hostPort": not any("hostPort" in port for port in each.get("ports", [])),
            "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        }
        bad |= {f"{each['name']}.{name}" for name, good in checks.items() if not good}
    return bad


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_pod_is_restricted(shape: Object) -> None:
    found = pods(objects(shape))
    assert "Deployment/ebbtide-operator" in found
    assert {name: violations(spec) for name, spec in found.items() if violations(spec)} == {}


def test_there_are_three_kinds_of_pods() -> None:
    assert set(pods(objects())) == {"Deployment/ebbtide-operator", "Job/ebbtide-uninstall", "Pod/ebbtide-test"}


def test_the_operator_knows_which_pod_of_its_name_it_is() -> None:
    """A StatefulSet's or a hand-made pod comes back under its name: the UID in the leader's Lease tells them apart."""
    (operator,) = pods(objects())["Deployment/ebbtide-operator"]["containers"]
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in operator["env"] if "valueFrom" in each
    }
    assert fields == {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid", "POD_NAMESPACE": "metadata.namespace"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("hostNetwork", True),
        ("securityContext.runAsNonRoot", False),
        ("securityContext.seccompProfile", {"type": "Unconfined"}),
        ("containers.0.securityContext.allowPrivilegeEscalation", True),
        ("containers.0.securityContext.capabilities", {"drop": ["ALL"], "add": ["SYS_PTRACE"]}),
        ("containers.0.securityContext.readOnlyRootFilesystem", False),
        ("volumes", [{"name": "root", "hostPath": {"path": "/"}}]),
    ],
)
def test_the_check_sees_each_violation(path: str, value: object) -> None:
    spec = copy.deepcopy(pods(objects())["Deployment/ebbtide-operator"])
    *way, last = path.split(".")
    place = spec
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = value
    assert len(violations(spec)) == 1


def test_a_user_of_the_clusters_choice() -> None:
    for spec in pods(objects({"runAsUser": None})).values():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_tokens_are_mounted_only_where_they_are_used() -> None:
    found = objects()
    accounts = [each for each in found if each["kind"] == "ServiceAccount"]
    assert [each["metadata"]["name"] for each in accounts if each["automountServiceAccountToken"]] == []
    assert all(spec["automountServiceAccountToken"] for spec in pods(found).values())


def test_all_pods_use_our_image_and_pull_secrets() -> None:
    values = {"image": {"repository": "r/e", "tag": "2", "pullPolicy": "Never"}, "imagePullSecrets": [{"name": "s"}]}
    for spec in pods(objects(values)).values():
        assert [(each["image"], each["imagePullPolicy"]) for each in spec["containers"]] == [("r/e:2", "Never")]
        assert spec["imagePullSecrets"] == [{"name": "s"}]


def test_all_pods_are_placed_alike() -> None:
    for spec in pods(objects(SHAPES["everything"])).values():
        assert spec["nodeSelector"] == {"disk": "fast"}
        assert spec["tolerations"] == [{"key": "a", "operator": "Exists"}]


def test_every_container_says_what_it_needs() -> None:
    for spec in pods(objects()).values():
        for each in spec["containers"]:
            assert each["resources"]["requests"]["memory"]
            assert each["resources"]["limits"]["memory"]
