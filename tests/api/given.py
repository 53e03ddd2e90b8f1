"""Servers for the tests with a real API server."""

from typing import Any


def server(name: str, **spec: Any) -> dict[str, Any]:
    """Return an InferenceServer on a CPU of 4 GiB, in a group of its own name."""
    plain: dict[str, Any] = {
        "model": {"source": "/models/tiny"},
        "engine": {"image": "registry.example/vllm:0.32"},
        "colocation": {"devices": {"cpu": {"memory": "4Gi"}}, "hostMemoryLimit": "1Gi"},
    }
    return {
        "apiVersion": "ebbtide.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name, "namespace": "models"},
        "spec": plain | spec,
    }
