"""The chart's life on a real cluster: installed, tested, upgraded, rolled back, uninstalled.

A placeholder stands in for the operator here: these cases are about what the chart makes.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .images import Images
from .kube import Object, apply, container, exists, get, helm, kubectl, namespace, pod, until
from .process import ROOT, CommandError, succeeds

CHART = str(ROOT / "charts" / "ebbtide")
HOME = "e2e-chart"
OTHER = "e2e-chart-other"
ACCOUNT = f"system:serviceaccount:{HOME}:ebbtide-operator"
CRDS = {"inferenceservers.ebbtide.dev", "kvcachepolicies.ebbtide.dev"}
# All that a chart can leave behind, in its namespace and beyond.
KINDS = (
    "deployments,pods,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,"
    "poddisruptionbudgets"
)
CLUSTER_KINDS = "clusterroles,clusterrolebindings"


def values(images: Images, folder: Path) -> list[str]:
    """Return helm's arguments for our image with the placeholder in it."""
    repository, _, tag = images.ebbtide.name.rpartition(":")
    placeholder = (Path(__file__).with_name("placeholder.py")).read_text()
    command = ["/opt/ebbtide/bin/python", "-c", placeholder]
    file = folder / "values.json"
    file.write_text(json.dumps({"image": {"repository": repository, "tag": tag}, "command": command}))
    return ["-f", str(file), "--wait", "--timeout", "120s"]


def secret() -> Object:
    data: Object = get("secret", "ebbtide-gateway-tls", "-n", HOME)["data"]
    return data


def may(verb: str, what: str, space: str = HOME) -> bool:
    kind, _, part = what.partition("/")
    words = (verb, kind, "--subresource", part, "-n", space, "--as", ACCOUNT, "--as-group", "system:authenticated")
    return succeeds("kubectl", "auth", "can-i", *words)


def server(name: str) -> Object:
    spec = {"model": {"source": "/models/tiny"}, "engine": {"image": "none"}}
    meta = {"name": name, "namespace": HOME}
    return {"apiVersion": "ebbtide.dev/v1alpha1", "kind": "InferenceServer", "metadata": meta, "spec": spec}


@pytest.fixture(scope="module")
def release(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The installed release; what a test needs for an upgrade. What is left of it is removed."""
    apply(namespace(HOME), namespace(OTHER))
    flags = values(images, tmp_path_factory.mktemp("chart"))
    helm("install", "ebbtide", CHART, "-n", HOME, *flags)
    yield flags
    kubectl("delete", "namespace", HOME, OTHER, "--wait=true", "--timeout=90s")
    kubectl("delete", "crd", *CRDS, "--ignore-not-found")


def test_the_operator_is_ready_where_pods_are_restricted(release: list[str]) -> None:
    assert get("deployment", "ebbtide-operator", "-n", HOME)["status"]["readyReplicas"] == 1


def test_helm_test_passes_over_tls(release: list[str]) -> None:
    assert "Phase:          Succeeded" in helm("test", "ebbtide", "-n", HOME)


def test_the_kinds_are_served_and_explained(release: list[str]) -> None:
    served = kubectl("api-resources", "--api-group=ebbtide.dev", "-o", "name").split()
    assert set(served) == CRDS
    # Discovery follows a new kind by a moment.
    until("isv is explained", lambda: succeeds("kubectl", "explain", "isv.spec"), seconds=30)
    assert "FIELDS:" in kubectl("explain", "isv.spec")


def test_the_operator_may_do_its_work_and_no_more(release: list[str]) -> None:
    allowed = [("watch", "inferenceservers.ebbtide.dev"), ("patch", "inferenceservers.ebbtide.dev/status")]
    allowed += [("create", "statefulsets.apps"), ("delete", "pods"), ("update", "leases.coordination.k8s.io")]
    allowed += [
        ("create", "localsubjectaccessreviews.authorization.k8s.io"),
        ("create", "tokenreviews.authentication.k8s.io"),
    ]
    refused = [
        ("get", "secrets"),
        ("list", "secrets"),
        ("create", "pods/exec"),
        ("update", "inferenceservers.ebbtide.dev"),
    ]
    refused += [("create", "serviceaccounts"), ("list", "nodes"), ("create", "roles.rbac.authorization.k8s.io")]
    assert [each for each in allowed if not may(*each)] == []
    assert [each for each in refused if may(*each)] == []
    assert not may("list", "pods", OTHER)


def test_it_makes_tokens_of_itself_alone(release: list[str]) -> None:
    ask = ("create", "token", "--audience", "ebbtide:x", "-n", HOME, "--as", ACCOUNT)
    assert kubectl(*ask, "ebbtide-operator").count(".") == 2
    with pytest.raises(CommandError, match="forbidden"):
        kubectl(*ask, "ebbtide-engine")


def test_a_trainer_that_is_bound_may_lend(release: list[str]) -> None:
    bind = ("create", "rolebinding", "trainer-lend", "-n", HOME, "--clusterrole=ebbtide-lend")
    kubectl(*bind, f"--serviceaccount={HOME}:default")
    ask = ("auth", "can-i", "create", "inferenceservers.ebbtide.dev", "--subresource=lend")
    assert succeeds("kubectl", *ask, "-n", HOME, "--as", f"system:serviceaccount:{HOME}:default")
    assert not succeeds("kubectl", *ask, "-n", OTHER, "--as", f"system:serviceaccount:{HOME}:default")


def test_a_role_of_the_cluster_covers_our_kinds(release: list[str]) -> None:
    rules = get("clusterrole", "view")["rules"]
    assert any("inferenceservers" in rule.get("resources", []) for rule in rules)


def test_an_upgrade_keeps_the_certificate_and_a_rollback_goes_back(release: list[str]) -> None:
    before = secret()
    helm("upgrade", "ebbtide", CHART, "-n", HOME, *release, "--set-string", "podLabels.turn=two")
    assert secret() == before
    assert get("deployment", "ebbtide-operator", "-n", HOME)["spec"]["template"]["metadata"]["labels"]["turn"] == "two"
    helm("rollback", "ebbtide", "1", "-n", HOME, "--wait", "--timeout", "120s")
    assert secret() == before
    assert "turn" not in get("deployment", "ebbtide-operator", "-n", HOME)["spec"]["template"]["metadata"]["labels"]
    text = get("configmap", "ebbtide-gateway", "-n", HOME)["data"]["ca.crt"]
    assert base64.b64decode(before["ca.crt"]).decode().strip() == text.strip()


def test_another_namespace_is_watched_by_a_role_of_its_own(release: list[str]) -> None:
    both = ("--set", f"watchNamespaces={{{HOME},{OTHER}}}")
    helm("upgrade", "ebbtide", CHART, "-n", HOME, *release, *both)
    assert may("list", "pods", OTHER)
    assert exists("serviceaccount", "ebbtide-engine", "-n", OTHER)
    assert exists("configmap", "ebbtide-gateway", "-n", OTHER)
    helm("upgrade", "ebbtide", CHART, "-n", HOME, *release, "--set", "clusterWide=true")
    assert may("list", "pods", "default")
    assert not may("get", "secrets", "default")
    helm("upgrade", "ebbtide", CHART, "-n", HOME, *release)
    assert not may("list", "pods", OTHER)
    assert not exists("serviceaccount", "ebbtide-engine", "-n", OTHER)


def test_an_uninstall_removes_the_servers_first_and_leaves_the_crds_alone(release: list[str], images: Images) -> None:
    apply(server("chat"), server("draft"))
    # An engine pod that outlives its server for a moment: the hook waits for it.
    engine = pod("chat-0", HOME, container("engine", images.base.name, ["sleep", "8"]))
    engine["metadata"]["labels"] = {"app.kubernetes.io/name": "ebbtide-engine"}
    owner = get("isv", "chat", "-n", HOME)["metadata"]
    reference = {"apiVersion": "ebbtide.dev/v1alpha1", "kind": "InferenceServer", "name": "chat", "uid": owner["uid"]}
    engine["metadata"]["ownerReferences"] = [reference]
    apply(engine)
    kubectl("wait", "pod/chat-0", "-n", HOME, "--for=condition=Ready", "--timeout=60s")
    helm("uninstall", "ebbtide", "-n", HOME, "--wait", "--timeout", "180s")
    assert kubectl("get", "isv", "-A", "-o", "name") == ""
    left = {
        f"{each['kind']}/{each['metadata']['name']}"
        for each in get(KINDS, "-n", HOME)["items"]
        if each["metadata"].get("deletionTimestamp") is None
    }
    assert left == {"ServiceAccount/default", "ConfigMap/kube-root-ca.crt", "RoleBinding/trainer-lend"}
    beyond = get(CLUSTER_KINDS)["items"]
    assert [each["metadata"]["name"] for each in beyond if "ebbtide" in each["metadata"]["name"]] == []
    assert {each["metadata"]["name"] for each in get("crd")["items"]} >= CRDS


def test_it_installs_again_on_the_kept_crds(release: list[str]) -> None:
    helm("install", "ebbtide", CHART, "-n", HOME, *release)
    assert get("deployment", "ebbtide-operator", "-n", HOME)["status"]["readyReplicas"] == 1
    helm("uninstall", "ebbtide", "-n", HOME, "--wait", "--timeout", "180s")
