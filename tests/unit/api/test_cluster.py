"""The CRDs on a real API server. Opt-in: EBBTIDE_CLUSTER names a script that takes `up --control-plane`, `env`, `down`.

Every good and bad object of objects.py is shown to the server too, so that a rule's Python form and its CEL form
cannot drift apart.
"""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.quantity import Quantity
from ebbtide_api.server import InferenceServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.api.objects import BAD, CHANGES, GOOD, SERVER, Case, server
from tests.unit.api.test_objects import KINDS, read
from tests.unit.api.test_parity import objects

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = os.environ.get("EBBTIDE_CLUSTER", "")

pytestmark = [
    pytest.mark.skipif(not CLUSTER, reason="EBBTIDE_CLUSTER does not name a script that starts a control plane"),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Kubectl:
    """kubectl against the control plane that the fixture started."""

    environment: dict[str, str]

    def run(self, *arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
        text = None if given is None else json.dumps(given)
        return subprocess.run(
            ["kubectl", *arguments], env=self.environment, input=text, text=True, capture_output=True, timeout=60
        )

    def ok(self, *arguments: str, given: object = None) -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dry(self, made: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        create = ["create", "-f", "-", "--dry-run=server", "--validate=strict", "-o", "json"]
        return self.run(*create, given=made)


def free_ports(count: int) -> int:
    """Return the first of `count` ports in a row that nobody listens on."""
    for first in range(17443, 18443, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("0.0.0.0", first + offset))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    pytest.fail("no free ports")


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    lab = tmp_path_factory.mktemp("cluster") / "lab"
    environment = os.environ | {"KUBE_LAB_DIR": str(lab), "KUBE_LAB_PORT": str(free_ports(3))}
    environment["KUBECACHEDIR"] = str(lab.parent / "cache")
    try:
        subprocess.run(
            [CLUSTER, "up", "--control-plane"], env=environment, check=True, timeout=200, capture_output=True
        )
        exports = subprocess.run([CLUSTER, "env"], env=environment, check=True, text=True, capture_output=True).stdout
        paths = dict(re.findall(r"export (\w+)=(\S+)", exports))
        paths["PATH"] = paths["PATH"].replace("$PATH", os.environ["PATH"])
        made = Kubectl(environment | paths)
        made.ok("apply", *[f"--filename={path}" for path in sorted((ROOT / "crds").glob("*.yaml"))])
        made.ok("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        yield made
    finally:
        subprocess.run([CLUSTER, "down"], env=environment, check=True, timeout=60, capture_output=True)


def test_the_crds_are_structural_and_their_names_accepted(kubectl: Kubectl) -> None:
    crds = json.loads(kubectl.ok("get", "crd", "-o", "json"))["items"]
    assert len(crds) == 2
    for crd in crds:
        conditions = {one["type"]: one["status"] for one in crd["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_good_objects_are_taken_with_our_defaults(kubectl: Kubectl, case: Case) -> None:
    done = kubectl.dry(case.object())
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)
    ours = read(case.object())
    # The server's defaults and the models' are the same ones.
    assert type(ours).model_validate(kept).spec.wire() == ours.spec.wire()
    assert KINDS[kept["kind"]].model_validate(kept).spec.model_fields_set >= ours.spec.model_fields_set


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_our_models_take_the_server_takes(kubectl: Kubectl, kind: str, data: st.DataObject) -> None:
    ours = data.draw(objects(kind))
    done = kubectl.dry(ours.wire())
    assert done.returncode == 0, done.stderr
    assert KINDS[kind].model_validate_json(done.stdout).spec.wire() == ours.spec.wire()


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_bad_objects_are_refused_at_the_field(kubectl: Kubectl, case: Case) -> None:
    done = kubectl.dry(case.object())
    assert done.returncode != 0, done.stdout
    assert case.field in done.stderr
    assert case.why in done.stderr


@pytest.mark.parametrize(("name", "changes", "field", "why"), CHANGES, ids=lambda value: str(value)[:12])
def test_transitions_are_refused(kubectl: Kubectl, name: str, changes: dict[str, Any], field: str, why: str) -> None:
    old = server("", metadata__name=f"change-{name}").object()
    kubectl.ok("create", "-f", "-", given=old)
    new = Case(name, old, changes).object()
    done = kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", given=new)
    assert done.returncode != 0
    assert field in done.stderr
    assert why in done.stderr


def test_naming_the_default_group_is_no_change(kubectl: Kubectl) -> None:
    old = server("", metadata__name="same").object()
    kubectl.ok("create", "-f", "-", given=old)
    new = server("", metadata__name="same", spec__colocation={"group": "same"}).object()
    kubectl.ok("apply", "--server-side", "-f", "-", given=new)


def test_scale_works_while_awake_replicas_is_absent(kubectl: Kubectl) -> None:
    kubectl.ok("create", "-f", "-", given=server("", metadata__name="scaled", spec__replicas=2).object())
    kubectl.ok("scale", "isv/scaled", "--replicas=0")
    assert kubectl.ok("get", "isv", "scaled", "-o", "jsonpath={.spec.awakeReplicas}/{.spec.replicas}") == "0/2"
    kubectl.ok("scale", "isv/scaled", "--replicas=5")
    made = InferenceServer.model_validate_json(kubectl.ok("get", "isv", "scaled", "-o", "json"))
    assert made.spec.awake_replicas == 5


STATUS = {
    "phase": "Running",
    "owner": "engine",
    "epoch": 3,
    "weightVersion": 7,
    "replicas": 1,
    "awakeReplicas": 1,
    "selector": "ebbtide.dev/server=shown",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Serving",
            "message": "All of 1 replicas serve.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
    "members": [
        {"name": "shown-0", "phase": "Running", "device": [{"id": "cpu0", "usedMiB": 100, "freeMiB": 900}]},
    ],
}


def test_columns_show_the_status(kubectl: Kubectl) -> None:
    kubectl.ok("create", "-f", "-", given=server("", metadata__name="shown").object())
    kubectl.ok("patch", "isv", "shown", "--subresource=status", "--type=merge", "-p", json.dumps({"status": STATUS}))
    head, row = kubectl.ok("get", "isv", "shown").splitlines()
    assert head.split() == ["NAME", "MODEL", "READY", "STATE", "AWAKE", "OWNER", "VERSION", "AGE"]
    assert row.split()[:-1] == ["shown", "/models/tiny", "True", "Running", "1", "engine", "7"]
    assert "inferenceserver.ebbtide.dev/shown" in kubectl.ok("get", "ebbtide", "-o", "name")


def test_a_wrong_status_is_refused(kubectl: Kubectl) -> None:
    kubectl.ok("create", "-f", "-", given=server("", metadata__name="wrong").object())
    for status, field in [
        ({"epoch": -1}, "status.epoch"),
        ({"members": [{"name": "a", "phase": "Dreaming"}]}, "status.members[0].phase"),
        ({"members": [{"name": "a"}, {"name": "a"}]}, "status.members[1]"),
        ({"conditions": [{"type": "Ready", "status": "Maybe"}]}, "status.conditions[0]"),
    ]:
        patch = json.dumps({"status": status})
        done = kubectl.run("patch", "isv", "wrong", "--subresource=status", "--type=merge", "-p", patch)
        assert done.returncode != 0
        assert field in done.stderr


def test_two_appliers_own_items_of_one_list(kubectl: Kubectl) -> None:
    """`env` is a list map: server-side apply merges it by name."""
    for manager, variable in (("a", "A"), ("b", "B")):
        made = server("", metadata__name="shared", spec__engine={"env": [{"name": variable, "value": "1"}]}).object()
        kubectl.ok("apply", "--server-side", f"--field-manager={manager}", "-f", "-", given=made)
    assert kubectl.ok("get", "isv", "shared", "-o", "jsonpath={.spec.engine.env[*].name}") == "A B"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("isv", "whose device memory can be lent"),
        ("isv.spec.sleep", "How the server sleeps"),
        ("isv.spec.sleep.drain.onDeadline", "Abort ends what remains"),
        ("isv.spec.colocation.devices.cpu.memory", "The budget of bytes"),
        ("isv.status.members.device.usedMiB", "MiB that the member uses"),
        ("kvp.spec.contexts.maxTTL", "The longest TTL"),
    ],
)
def test_explain_reads_well(kubectl: Kubectl, path: str, shown: str) -> None:
    assert shown in " ".join(kubectl.ok("explain", path).split())


def test_explain_describes_every_field_of_a_group(kubectl: Kubectl) -> None:
    for path in ("isv.spec", "isv.spec.sleep", "isv.spec.engine", "isv.spec.colocation", "isv.status", "kvp.spec"):
        assert "<no description>" not in kubectl.ok("explain", path)


@pytest.mark.parametrize("spelled", ["1.5Gi", "1024Mi", "1000k", "1536", "0.5Gi", "999999k"])
def test_kubernetes_writes_quantities_as_we_do(kubectl: Kubectl, spelled: str) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.memory": spelled}},
    }
    written = json.loads(kubectl.dry(quota).stdout)["spec"]["hard"]["requests.memory"]
    assert Quantity(written).bytes == Quantity(spelled).bytes
    # Kubernetes keeps the family of suffixes that it was given; ours is the binary one.
    if "i" in spelled:
        assert written == Quantity.of(Quantity(spelled).bytes)


def test_the_example_is_refused_on_a_cluster_for_its_relative_path(kubectl: Kubectl) -> None:
    done = kubectl.run("create", "--dry-run=server", "-f", str(ROOT / "examples/local/server.yaml"))
    assert done.returncode != 0
    assert "only `ebbtide` resolves ./ and ../" in done.stderr
    assert SERVER["spec"]["model"]["source"].startswith("/")
