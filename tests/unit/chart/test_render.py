"""The chart renders into objects that an API server takes, whatever is switched on."""

import helm_python
import pytest
import yaml
from ebbtide_operator.kube.operations import NAME as OPERATIONS

from .rendering import CHART, NOTES, SHAPES, Object, objects, of_kind, one, texts

CLUSTER_SCOPED = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Object:
    return SHAPES[request.param]


def identity(it: Object) -> tuple[str, str | None, str]:
    return it["kind"], it["metadata"].get("namespace"), it["metadata"]["name"]


def test_every_object_is_whole_and_there_once(shape: Object) -> None:
    found = objects(shape)
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in found)
    names = [identity(each) for each in found]
    assert len(names) == len(set(names))


def test_every_object_says_where_it_is(shape: Object) -> None:
    wrong = [
        identity(each)
        for each in objects(shape)
        if ("namespace" in each["metadata"]) == (each["kind"] in CLUSTER_SCOPED)
    ]
    assert wrong == []


def test_every_object_carries_the_release(shape: Object) -> None:
    for each in objects(shape):
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "ebbtide", identity(each)


def test_names_fit_whatever_the_release_is_called() -> None:
    found = objects(name="a" * 53, namespace="n" * 63)
    long = [
        identity(each) for each in found if len(each["metadata"]["name"]) > 63 and each["kind"] not in CLUSTER_SCOPED
    ]
    assert long == []


def test_a_selector_finds_the_pods_and_nothing_else() -> None:
    found = objects()
    pod = one("Deployment", "ebbtide-operator", found)["spec"]["template"]["metadata"]["labels"]
    job = one("Job", "ebbtide-uninstall", found)["spec"]["template"]["metadata"]["labels"]
    for kind, path in {"Service": "selector", "PodDisruptionBudget": "selector", "Deployment": "selector"}.items():
        (it,) = of_kind(kind, found)
        wanted = it["spec"][path].get("matchLabels", it["spec"][path])
        assert wanted.items() <= pod.items(), kind
        assert not wanted.items() <= job.items(), kind


def test_the_operator_is_told_what_the_chart_made() -> None:
    container = one("Deployment", "ebbtide-operator", objects({"watchNamespaces": ["a", "b"]}))["spec"]["template"][
        "spec"
    ]["containers"][0]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["EBBTIDE_WATCH_NAMESPACES"] == "a,b"
    assert env["EBBTIDE_CLUSTER_WIDE"] == "false"
    assert env["EBBTIDE_IMAGE"] == container["image"] == "ebbtide:0.1.0"
    assert env["EBBTIDE_SERVICE_ACCOUNT"] == "ebbtide-operator"
    assert env["EBBTIDE_ENGINE_SERVICE_ACCOUNT"] == "ebbtide-engine"
    assert env["EBBTIDE_GATEWAY_URL"] == "https://ebbtide-gateway.home.svc"
    assert container["command"] == ["/opt/ebbtide/bin/python", "-m", "ebbtide_operator.kube"]


def test_cluster_wide_the_operator_is_told_no_namespace() -> None:
    spec = one("Deployment", "ebbtide-operator", objects({"clusterWide": True}))["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert (env["EBBTIDE_CLUSTER_WIDE"], env["EBBTIDE_WATCH_NAMESPACES"]) == ("true", "")
    assert env["EBBTIDE_ENGINE_SERVICE_ACCOUNT"] == "default"


def test_ports_of_probes_and_services_exist() -> None:
    found = objects()
    container = one("Deployment", "ebbtide-operator", found)["spec"]["template"]["spec"]["containers"][0]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"gateway": 8443, "metrics": 8080}
    assert {each["targetPort"] for each in one("Service", "ebbtide-gateway", found)["spec"]["ports"]} == set(ports)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports


def test_monitors_are_opt_in() -> None:
    kinds = {each["kind"] for each in objects()}
    assert not kinds & {"ServiceMonitor", "PodMonitor"}
    assert {each["kind"] for each in objects(SHAPES["everything"])} >= {"ServiceMonitor", "PodMonitor"}


def test_what_is_switched_off_is_gone() -> None:
    kinds = {each["kind"] for each in objects(SHAPES["bare"])}
    assert not kinds & {"NetworkPolicy", "PodDisruptionBudget", "Job", "Role", "RoleBinding", "ClusterRoleBinding"}


def test_a_sleeping_operator_does_not_block_a_drain() -> None:
    spec = one("PodDisruptionBudget", "ebbtide-operator", objects())["spec"]
    assert (spec["unhealthyPodEvictionPolicy"], spec["maxUnavailable"]) == ("AlwaysAllow", 1)


def test_network_policies_open_what_is_used() -> None:
    spec = one("NetworkPolicy", "ebbtide-operator", objects(SHAPES["everything"]))["spec"]
    assert [each["ports"][0]["port"] for each in spec["ingress"]] == ["gateway", "metrics"]
    assert spec["ingress"][0]["from"] == [{"podSelector": {}}]
    out = [port["port"] for rule in spec["egress"] for port in rule["ports"]]
    assert out == [53, 53, 443, 6443, 7412]


def test_the_notes_name_the_gateway() -> None:
    (notes,) = [text for path, text in texts().items() if path.endswith(NOTES)]
    assert "https://ebbtide-gateway.home.svc" in notes
    assert "helm test ebbtide -n home" in notes


@pytest.mark.parametrize("version", ["v1.29.0", "v1.34.4", "v1.37.0"])
def test_lint_finds_nothing(version: str, shape: Object) -> None:
    report = helm_python.lint(CHART, shape, strict=True, kube_version=version)
    assert [each for each in report["messages"] if each["severity"] > 1] == []


def test_old_clusters_are_refused_by_name() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == ">=1.29.0-0"


def test_the_record_of_operations_goes_with_the_release() -> None:
    """The operator writes it where servers are; what only the operator made would be left behind."""
    found = of_kind("ConfigMap", objects({"watchNamespaces": ["a", "b"]}))
    kept = [each for each in found if each["metadata"]["name"] == OPERATIONS]
    assert {each["metadata"]["namespace"] for each in kept} == {"a", "b"}
    # An upgrade takes nothing out of it: the chart says nothing of its data.
    assert not any("data" in each for each in kept)
