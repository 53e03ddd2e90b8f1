"""The metadata of every child: labels that select, an owner that garbage collection follows."""

from __future__ import annotations

from ebbtide_api.resource import API_VERSION
from ebbtide_api.server import InferenceServer

from ..names import ENGINE_APP, GROUP, MANAGER, SERVER, Json


def labels(server: InferenceServer) -> dict[str, str]:
    """Return the labels of a server's pods and other children."""
    return {
        "app.kubernetes.io/name": ENGINE_APP,
        "app.kubernetes.io/instance": server.name,
        "app.kubernetes.io/managed-by": MANAGER,
        SERVER: server.name,
        GROUP: server.group,
    }


def metadata(server: InferenceServer, name: str) -> Json:
    """Return the metadata of a child of that name."""
    return {
        "name": name,
        "namespace": server.metadata.namespace,
        "labels": labels(server),
        "ownerReferences": [owner(server) | {"controller": True}],
    }


def owner(server: InferenceServer) -> Json:
    """Return the reference by which an object goes when its server does. It blocks no deletion: nothing must wait."""
    return {
        "apiVersion": API_VERSION,
        "kind": server.kind,
        "name": server.name,
        "uid": server.metadata.uid,
    }
