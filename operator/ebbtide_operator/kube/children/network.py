"""How a server's pods are reached: by clients while they serve, by the operator and by trainers always."""

from __future__ import annotations

from ebbtide_api.server import InferenceServer

from ..names import AGENT_PORT, BORROWS, OPERATOR_APP, Json, members_service, selector
from .metadata import metadata
from .site import Site

_NAMESPACE = "kubernetes.io/metadata.name"


def client_service(server: InferenceServer) -> Json:
    """Return the Service that clients use: pods that are ready, which means serving."""
    return _service(server, server.name, {"type": "ClusterIP", "ports": [_http(server)]})


def headless_service(server: InferenceServer) -> Json:
    """Return the Service that gives every pod a name, ready or not: a sleeper is driven by its name too."""
    agent = _port("agent", AGENT_PORT, "agent")
    spec: Json = {"clusterIP": "None", "publishNotReadyAddresses": True, "ports": [_http(server), agent]}
    return _service(server, members_service(server.name), spec)


def _service(server: InferenceServer, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(server, name),
        "spec": {**spec, "selector": selector(server.name)},
    }


def _http(server: InferenceServer) -> Json:
    return _port("http", server.spec.engine.port, "http")


def _port(name: str, port: int, target: str) -> Json:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}


def network_policy(server: InferenceServer, site: Site) -> Json:
    """Return the NetworkPolicy: the gate for everybody, the agent for the operator and the group's trainers.

    Probes come from the node, which no policy shuts out, so the launcher's port is open to nobody else.
    """
    operator: Json = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: site.namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR_APP}},
    }
    trainers: Json = {"podSelector": {"matchLabels": {BORROWS: server.group}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(server, server.name),
        "spec": {
            "podSelector": {"matchLabels": selector(server.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": server.spec.engine.port, "protocol": "TCP"}]},
                {"from": [operator, trainers], "ports": [{"port": AGENT_PORT, "protocol": "TCP"}]},
            ],
        },
    }
