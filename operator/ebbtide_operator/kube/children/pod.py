"""The pod template of a server: our defaults, the user's `spec.template` over them, and what must be over that."""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide_api.server import InferenceServer

from ..names import HANDOFF_VOLUME, UID, Json, member_config_map
from .containers import (
    agent_defaults,
    agent_fixed,
    engine_defaults,
    engine_fixed,
    grace_seconds,
    payload_defaults,
    payload_fixed,
    token_sources,
)
from .merge import merge
from .metadata import labels
from .site import Site
from .sizes import MIB, quantity, sizes


def template(server: InferenceServer, site: Site) -> Json:
    """Return the pod template."""
    return merge(merge(_defaults(server, site), patch(server)), _fixed(server, site))


def patch(server: InferenceServer) -> Json:
    """Return the user's patch of it."""
    return dict(server.spec.template or {})


def _defaults(server: InferenceServer, site: Site) -> Json:
    secrets: Json = {"imagePullSecrets": [{"name": name} for name in site.pull_secrets]} if site.pull_secrets else {}
    return {
        "spec": {
            "initContainers": [payload_defaults(), agent_defaults(server)],
            "containers": [engine_defaults(server)],
            "terminationGracePeriodSeconds": grace_seconds(server),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": UID,
                "runAsGroup": UID,
                "fsGroup": UID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "enableServiceLinks": False,
            **secrets,
        }
    }


def _fixed(server: InferenceServer, site: Site) -> Json:
    handoff = has_handoff_volume(server)
    devices = server.spec.colocation.devices
    claims: Json = {}
    if devices and devices.claim:
        claims = {"resourceClaims": [{"name": "ebbtide-devices", "resourceClaimName": devices.claim}]}
    return {
        "metadata": {
            "labels": labels(server),
            "annotations": {"kubectl.kubernetes.io/default-container": "engine"},
        },
        "spec": {
            "initContainers": [payload_fixed(site), agent_fixed(server, site, handoff=handoff)],
            "containers": [engine_fixed(server, handoff=handoff)],
            "volumes": _volumes(server),
            "restartPolicy": "Always",
            # The agent tells a live engine from a dead one by its process, and so does the page's count of requests.
            "shareProcessNamespace": True,
            "serviceAccountName": site.engine_account,
            "automountServiceAccountToken": False,
            **claims,
        },
    }


def _volumes(server: InferenceServer) -> list[Json]:
    size = sizes(server)
    volumes: list[Json] = [
        {"name": "ebbtide-payload", "emptyDir": {"sizeLimit": quantity(256 * MIB)}},
        {"name": "ebbtide-memory", "emptyDir": _in_memory(size.memory)},
        {"name": "ebbtide-home", "emptyDir": {"sizeLimit": quantity(1024 * MIB)}},
        {"name": "ebbtide-cache", "emptyDir": {}},
        {"name": "ebbtide-member", "configMap": {"name": member_config_map(server.name), "defaultMode": 0o444}},
        {"name": "ebbtide-token", "projected": {"sources": token_sources(), "defaultMode": 0o440}},
    ]
    shared: list[Json] = [{"name": "ebbtide-shm", "emptyDir": _in_memory(size.shm)}]
    return volumes + shared if size.shm else volumes


def _in_memory(limit: int | None) -> Json:
    return {"medium": "Memory", **({"sizeLimit": quantity(limit)} if limit is not None else {})}


def has_handoff_volume(server: InferenceServer) -> bool:
    """Say whether the user's template brings the volume on which weights are published."""
    spec = patch(server).get("spec")
    volumes = spec.get("volumes") if isinstance(spec, dict) else None
    return HANDOFF_VOLUME in _names(volumes if isinstance(volumes, list) else [])


def _names(items: Iterable[object]) -> set[object]:
    return {item.get("name") for item in items if isinstance(item, dict)}
