"""The operator on a real API server, under its own ServiceAccount: what it makes, writes, undoes and leaves alone."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.cluster import NAMESPACE, SYSTEM, Kubectl, OperatorProcess, operator, soon
from tests.api.given import server

CHILDREN = ("statefulsets", "services", "networkpolicies", "poddisruptionbudgets")
MERGE = ("--type=merge", "-p")


@pytest.fixture(scope="module")
def running(kubectl: Kubectl, tls: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operator(kubectl, tmp_path_factory.mktemp("operator"), tls) as made:
        made.wait_ready()
        yield made
        assert made.end() == 0
        assert made.forbidden() == []


def number(of: OperatorProcess, name: str) -> float:
    found = re.search(rf"^{name} (\S+)", of.metrics(), re.MULTILINE)
    assert found
    return float(found[1])


def writes(of: OperatorProcess) -> float:
    return number(of, "ebbtide_api_writes_total")


def make(kubectl: Kubectl, name: str, **spec: Any) -> None:
    kubectl.ok("apply", "--server-side", "--force-conflicts", "-f", "-", given=server(name, **spec))


def status(kubectl: Kubectl, name: str) -> Any:
    return kubectl.get("isv", name).get("status", {})


def condition(kubectl: Kubectl, name: str, kind: str) -> tuple[str, str, str]:
    found = {one["type"]: one for one in status(kubectl, name).get("conditions", [])}.get(kind, {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def mine(kubectl: Kubectl, kind: str, name: str) -> list[str]:
    label = f"ebbtide.dev/server={name}"
    found = json.loads(kubectl.ok("get", kind, "-n", NAMESPACE, "-l", label, "-o", "json"))["items"]
    return sorted(item["metadata"]["name"] for item in found)


def test_a_server_gets_its_children_and_pods_that_a_restricted_namespace_takes(
    kubectl: Kubectl, running: OperatorProcess
) -> None:
    make(kubectl, "first", replicas=2)
    soon(lambda: mine(kubectl, "pods", "first") == ["first-0", "first-1"])
    assert {kind: mine(kubectl, kind, "first") for kind in CHILDREN} == {
        "statefulsets": ["first"],
        "services": ["first", "first-members"],
        "networkpolicies": ["first"],
        "poddisruptionbudgets": ["first"],
    }
    soon(lambda: condition(kubectl, "first", "Stalled")[0] == "True")
    assert "no node takes it" in condition(kubectl, "first", "Ready")[2]
    assert status(kubectl, "first")["observedGeneration"] == 1
    assert [member["name"] for member in status(kubectl, "first")["members"]] == ["first-0", "first-1"]


def test_what_is_as_it_should_be_is_not_written_again(
    kubectl: Kubectl, running: OperatorProcess, tls: Path, tmp_path: Path
) -> None:
    make(kubectl, "quiet")
    soon(lambda: condition(kubectl, "quiet", "Stalled")[0] == "True")

    def versions() -> list[str]:
        kinds = [*CHILDREN, "pods", "isv"]
        items = [item for kind in kinds for item in kubectl.get(kind)["items"]]
        return [f"{item['kind']}/{item['metadata']['name']}@{item['metadata']['resourceVersion']}" for item in items]

    soon(lambda: versions() == versions())
    before, leases = versions(), len(kubectl.names("leases"))
    started = kubectl.get("lease", "ebbtide-operator", SYSTEM)["spec"]["renewTime"]
    count = writes(running)
    soon(lambda: kubectl.get("lease", "ebbtide-operator", SYSTEM)["spec"]["renewTime"] != started)
    soon(lambda: writes(running) >= count + 2)
    assert versions() == before
    # Its own renewals are heard through the watch of its own namespace, where it may see nothing else.
    assert number(running, "ebbtide_watch_echo_seconds") < 10
    assert len(kubectl.names("leases")) == leases


def test_an_edit_by_hand_is_undone(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "edited")
    soon(lambda: mine(kubectl, "pods", "edited") == ["edited-0"])
    kubectl.ok("scale", "statefulset", "edited", "-n", NAMESPACE, "--replicas=3")
    soon(lambda: kubectl.get("statefulset", "edited")["spec"]["replicas"] == 1)
    kubectl.ok("delete", "statefulset", "edited", "-n", NAMESPACE, "--cascade=orphan")
    soon(lambda: "edited" in kubectl.names("statefulsets"))


def test_replicas_come_and_go_and_a_deleted_server_leaves_nothing(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "brief", replicas=2)
    soon(lambda: mine(kubectl, "pods", "brief") == ["brief-0", "brief-1"])
    kubectl.ok("patch", "isv", "brief", "-n", NAMESPACE, *MERGE, '{"spec":{"replicas":1}}')
    soon(lambda: mine(kubectl, "pods", "brief") == ["brief-0"])
    kubectl.ok("delete", "isv", "brief", "-n", NAMESPACE)
    soon(lambda: not any(mine(kubectl, kind, "brief") for kind in (*CHILDREN, "pods", "configmaps")))
    soon(lambda: "ebbtide-group-brief" not in kubectl.names("leases"))


def test_a_server_of_the_same_name_is_another_one(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "again")
    soon(lambda: mine(kubectl, "pods", "again"))
    first = kubectl.get("pod", "again-0")["metadata"]["uid"]
    kubectl.ok("delete", "isv", "again", "-n", NAMESPACE)
    make(kubectl, "again", replicas=2)
    uid = kubectl.get("isv", "again")["metadata"]["uid"]
    soon(lambda: mine(kubectl, "pods", "again") == ["again-0", "again-1"])
    soon(lambda: kubectl.get("pod", "again-0")["metadata"]["uid"] != first)
    for kind in CHILDREN:
        owners = [
            kubectl.get(kind, name)["metadata"]["ownerReferences"][0]["uid"] for name in mine(kubectl, kind, "again")
        ]
        assert set(owners) == {uid}


def test_a_template_that_the_server_refuses_leaves_what_runs_untouched(
    kubectl: Kubectl, running: OperatorProcess
) -> None:
    make(kubectl, "broken")
    soon(lambda: mine(kubectl, "pods", "broken"))
    before = kubectl.get("statefulset", "broken")["metadata"]["resourceVersion"]
    make(
        kubectl,
        "broken",
        template={"spec": {"containers": [{"name": "engine", "resources": {"limits": {"cpu": "many"}}}]}},
    )
    soon(lambda: condition(kubectl, "broken", "Stalled")[1] == "TemplateRefused")
    assert (
        "cpu" in condition(kubectl, "broken", "Stalled")[2] or "quantit" in condition(kubectl, "broken", "Stalled")[2]
    )
    assert condition(kubectl, "broken", "Ready")[0] == "False"
    assert status(kubectl, "broken")["observedGeneration"] == 2
    assert kubectl.get("statefulset", "broken")["metadata"]["resourceVersion"] == before
    make(kubectl, "broken")
    soon(lambda: condition(kubectl, "broken", "Stalled")[1] != "TemplateRefused")


def test_a_pod_of_an_older_spec_is_replaced(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "rolls")
    soon(lambda: mine(kubectl, "pods", "rolls") == ["rolls-0"])
    old = kubectl.get("pod", "rolls-0")["metadata"]["uid"]
    make(kubectl, "rolls", engine={"image": "example.org/vllm:1", "port": 8123})

    def replaced() -> bool:
        found = [each for each in mine(kubectl, "pods", "rolls") if each == "rolls-0"]
        return found != [] and kubectl.get("pod", "rolls-0")["metadata"]["uid"] != old

    soon(replaced, 60)  # an operator that has just started listens for the agents first


def test_a_spec_that_is_not_honoured_is_refused_by_name(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "early", cachePolicy={"name": "absent"})
    soon(lambda: condition(kubectl, "early", "Stalled")[1] == "NotYetSupported")
    assert "spec.cachePolicy" in condition(kubectl, "early", "Stalled")[2]
    assert mine(kubectl, "statefulsets", "early") == []


def test_a_service_of_somebody_else_is_not_taken(kubectl: Kubectl, running: OperatorProcess) -> None:
    kubectl.ok("create", "service", "externalname", "taken", "-n", NAMESPACE, "--external-name=example.org")
    make(kubectl, "taken")
    soon(lambda: condition(kubectl, "taken", "Stalled")[1] == "NameTaken")
    assert kubectl.get("service", "taken")["spec"]["type"] == "ExternalName"
    assert mine(kubectl, "pods", "taken") == []
    kubectl.ok("delete", "service", "taken", "-n", NAMESPACE)
    soon(lambda: mine(kubectl, "pods", "taken") == ["taken-0"])


@pytest.mark.parametrize("what", ["delete", "edit"])
def test_a_lease_that_somebody_touches_moves_the_epoch(kubectl: Kubectl, running: OperatorProcess, what: str) -> None:
    name = f"lease-{what}"
    make(kubectl, name)
    soon(lambda: f"ebbtide-group-{name}" in kubectl.names("leases"))
    if what == "delete":
        kubectl.ok("delete", "lease", f"ebbtide-group-{name}", "-n", NAMESPACE)
    else:
        kubectl.ok(
            "patch", "lease", f"ebbtide-group-{name}", "-n", NAMESPACE, *MERGE, '{"spec":{"leaseTransitions":7}}'
        )
    above = 1 if what == "delete" else 7
    soon(lambda: status(kubectl, name).get("epoch", 0) > above)
    assert kubectl.get("lease", f"ebbtide-group-{name}")["spec"]["leaseTransitions"] == status(kubectl, name)["epoch"]


def test_people_read_servers_well(kubectl: Kubectl, running: OperatorProcess) -> None:
    make(kubectl, "shown")
    soon(lambda: status(kubectl, "shown").get("phase"))
    head = kubectl.ok("get", "isv", "shown", "-n", NAMESPACE).splitlines()[0].split()
    assert head == ["NAME", "MODEL", "READY", "STATE", "AWAKE", "OWNER", "VERSION", "AGE"]
    assert "parked" in kubectl.ok("explain", "isv.spec.sleep").lower()


def test_one_operator_leads_and_the_next_goes_on(
    kubectl: Kubectl, running: OperatorProcess, tls: Path, tmp_path: Path
) -> None:
    make(kubectl, "handed-over")
    soon(lambda: condition(kubectl, "handed-over", "Stalled")[0] == "True")
    with operator(kubectl, tmp_path, tls, "op-2") as second:
        soon(lambda: second.health and "leading" not in second.text(), 3)
        epoch = kubectl.get("lease", "ebbtide-operator", SYSTEM)["spec"]["leaseTransitions"]
        assert kubectl.get("lease", "ebbtide-operator", SYSTEM)["spec"]["holderIdentity"] == "op-1"
        running.kill()
        second.wait_for(f"leading as op-2, epoch {epoch + 1}", 60)
        kubectl.ok("patch", "isv", "handed-over", "-n", NAMESPACE, *MERGE, '{"spec":{"replicas":2}}')
        soon(lambda: mine(kubectl, "pods", "handed-over") == ["handed-over-0", "handed-over-1"])
        assert second.end() == 0
        assert second.forbidden() == []
