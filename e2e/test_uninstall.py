"""An uninstall while real engines serve. It is the last that happens to them: these cases come after those of lends."""

from collections.abc import Callable

from .kube import apply, exists, get, helm, kubectl, until
from .serving import HOME, Serving

KINDS = "pods,statefulsets,services,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,roles"
# The API server's own, and the trainers' account that the tests made.
LEFT = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default", "ServiceAccount/trainer"}


def left() -> set[str]:
    found = get(f"{KINDS},leases.coordination.k8s.io", "-n", HOME)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}" for each in found}


def test_an_uninstall_with_live_servers_leaves_nothing_of_them(serving: Serving) -> None:
    assert serving.pods()
    helm("uninstall", "ebbtide", "-n", HOME, "--wait", "--timeout", "180s")
    assert serving.pods() == []
    until("nothing is left", lambda: left() <= LEFT, 60)
    assert kubectl("get", "isv", "-A", "-o", "name") == ""


def test_a_namespace_with_live_servers_can_be_deleted(serving: Serving, install: Callable[[], None]) -> None:
    install()
    apply({**serving.document, "spec": {**serving.document["spec"], "replicas": 1}})
    serving.wait("Serving", 1, 300)
    # Its operator goes with it, at any moment of that.
    kubectl("delete", "namespace", HOME, "--wait=true", "--timeout=110s")
    assert not exists("namespace", HOME)
    assert kubectl("get", "isv", "-A", "-o", "name") == ""
