"""Servers and sites for the tests of the cluster's side."""

from typing import Any

from ebbtide_api.server import InferenceServer
from ebbtide_operator.kube.children import Site
from ebbtide_operator.kube.names import Json

SITE = Site(
    namespace="ebbtide-system",
    image="registry.example/ebbtide:1",
    gateway_url="https://ebbtide.ebbtide-system.svc:8443",
    gateway_ca="the root",
)
UID = "6b8a0a6e-6ff5-4a54-a9d2-3f4a2b0f7c11"


def server(
    name: str = "tiny", *, uid: str = UID, namespace: str = "models", generation: int = 1, **spec: Any
) -> InferenceServer:
    """Return a server on a CPU of 4 GiB; keyword arguments replace parts of its spec."""
    body: Json = {
        "model": {"source": "/models/tiny"},
        "engine": {"image": "registry.example/vllm:0.32"},
        "colocation": {"group": "actor", "devices": {"cpu": {"memory": "4Gi"}}, "hostMemoryLimit": "1Gi"},
    }
    metadata = {"name": name, "namespace": namespace, "uid": uid, "generation": generation}
    return InferenceServer.model_validate({"metadata": metadata, "spec": body | spec})


def at(found: Any, path: str) -> Any:
    """Return what lies at `a.b.c`; a step into a list takes the item of that name."""
    for step in path.split("."):
        found = next(item for item in found if item["name"] == step) if isinstance(found, list) else found[step]
    return found
