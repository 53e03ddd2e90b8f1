"""Renders charts/ebbtide, without a cluster or against a small API server that has what a test puts in."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "ebbtide"
Object = dict[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Helm applies hooks and NOTES.txt apart from the objects.
NOTES = "NOTES.txt"
EVERYTHING: Object = {
    "monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "priorityClassName": "high",
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "extraArgs": ["--verbose"],
    "extraEnv": [{"name": "A", "value": "b"}],
    "networkPolicies": {"gatewayFrom": [{"podSelector": {}}], "metricsFrom": [{"namespaceSelector": {}}]},
}
SHAPES: dict[str, Object] = {
    "default": {},
    "everything": EVERYTHING,
    "two namespaces": {"watchNamespaces": ["a", "b"]},
    "cluster-wide": {"clusterWide": True},
    "second release": {"crds": {"install": False}},
    "bare": {
        "networkPolicies": {"enabled": False},
        "pdb": {"enabled": False},
        "uninstall": {"deleteServers": False},
        "rbac": {"create": False},
    },
    "own certificate": {"gateway": {"tls": {"existingSecret": "mine", "caBundle": "-----BEGIN CERTIFICATE-----"}}},
}


def texts(values: Object | None = None, *, name: str = "ebbtide", namespace: str = "home") -> dict[str, str]:
    """Return each template's text. The same arguments give the same text, keys included."""
    return _rendered(json.dumps(values or {}), name, namespace)


@cache
def _rendered(values: str, name: str, namespace: str) -> dict[str, str]:
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(json.loads(values), name=name, namespace=namespace, is_install=True)


def parse(rendered: dict[str, str]) -> list[Object]:
    """Return the objects of rendered templates."""
    files = (text for path, text in rendered.items() if not path.endswith(NOTES))
    return [each for text in files for each in yaml.load_all(text, Loader=LOADER) if each]


def objects(values: Object | None = None, **more: str) -> list[Object]:
    """Return all objects of the chart, hooks included."""
    return parse(texts(values, **more))


def of_kind(kind: str, found: list[Object]) -> list[Object]:
    """Return the objects of a kind."""
    return [each for each in found if each["kind"] == kind]


def one(kind: str, name: str, found: list[Object]) -> Object:
    """Return the only object of this kind and name."""
    (it,) = [each for each in of_kind(kind, found) if each["metadata"]["name"] == name]
    return it


def pods(found: list[Object]) -> dict[str, Object]:
    """Return the pod specs by "Kind/name"."""
    specs = {}
    for each in found:
        key = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            specs[key] = each["spec"]
        elif each["kind"] in {"Deployment", "Job"}:
            specs[key] = each["spec"]["template"]["spec"]
    return specs


@contextmanager
def api_server(secrets: list[Object]) -> Iterator[str]:
    """Serve `secrets` as an API server does; yield a kubeconfig's text."""
    listed = [{"name": "secrets", "singularName": "", "namespaced": True, "kind": "Secret", "verbs": ["get", "list"]}]
    paths: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": listed},
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.4"},
    }
    for each in secrets:
        meta = each["metadata"]
        paths[f"/api/v1/namespaces/{meta['namespace']}/secrets/{meta['name']}"] = each

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = paths.get(self.path.partition("?")[0])
            body = found or {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [cluster],
        "contexts": [context],
    }
    try:
        yield json.dumps({**config, "users": [{"name": "a", "user": {}}]})
    finally:
        server.shutdown()
        server.server_close()


def upgraded(secrets: list[Object], values: Object | None = None) -> list[Object]:
    """Return the objects of an upgrade in a cluster that has `secrets`."""
    with (
        api_server(secrets) as kubeconfig,
        helm_python.Config(kubeconfig_content=kubeconfig, namespace="home") as cluster,
        helm_python.Chart.load(CHART) as chart,
    ):
        return parse(cluster.render(chart, values, name="ebbtide", namespace="home", is_upgrade=True))
