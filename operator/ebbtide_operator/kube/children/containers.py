"""The containers of an engine pod. `defaults` a user's template may change; `fixed` it may not.

    payload   copies our runtime into the pod, so that any vLLM image works unchanged
    agent     a native sidecar: it is up before the engine starts and ends after it; never in the request path
    engine    the user's image, started by our launcher, which answers the kubelet's probes

Readiness is the launcher's, not the agent's: an agent that restarts takes no endpoint away. Liveness asks whether the
launcher lives, not whether the engine serves: a sleeper, or a member that waits for its device, is never restarted.
"""

from __future__ import annotations

import math

from ebbtide_api.server import InferenceServer

from ..names import (
    AGENT_PORT,
    CACHE_DIR,
    GATEWAY_AUDIENCE,
    GATEWAY_CA_FILE,
    HANDOFF_DIR,
    HANDOFF_VOLUME,
    HOME_DIR,
    MEMBER_DIR,
    MEMBER_PATH,
    MEMORY_DIR,
    PAYLOAD_DIR,
    PROBE_PORT,
    TOKEN_DIR,
    Json,
    audience,
)
from .member import member_digest
from .site import Site
from .sizes import AGENT_REQUEST, quantity, sizes

PROPAGATION_S = 5
"""Seconds that a pod goes on serving after its deletion was asked for: routers hear of it later than the kubelet."""
LONGEST_DRAIN_S = 600
"""The longest that a pod's deletion waits for requests in flight, whatever the drain of a sleep may take."""
ENDING_S = 20
"""Seconds for the launcher to end the engine's processes after that, and for the agent to end."""

_PYTHON = "/opt/ebbtide/bin/python"
_CONFINED: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SAYS_WHY: Json = {"terminationMessagePolicy": "FallbackToLogsOnError"}
"""The last lines of a container that ended badly are in the pod's status, and so in ours."""
_READ_ONLY: Json = {**_CONFINED, "readOnlyRootFilesystem": True}


def drain_seconds(server: InferenceServer) -> int:
    """Return how long a pod that is deleted waits for its requests."""
    return min(LONGEST_DRAIN_S, math.ceil(server.spec.sleep.drain.timeout.seconds))


def grace_seconds(server: InferenceServer) -> int:
    """Return the pod's grace period: everything that happens after its deletion was asked for, in turn."""
    return PROPAGATION_S + drain_seconds(server) + ENDING_S


# defaults


def payload_defaults() -> Json:
    """Return what a template may change of the payload's container."""
    small: Json = {"cpu": "10m", "memory": "32Mi"}
    return {
        "name": "payload",
        "resources": {"requests": small, "limits": {"memory": "256Mi"}},
        "securityContext": _READ_ONLY,
    }


def agent_defaults(server: InferenceServer) -> Json:
    """Return what a template may change of the agent's container."""
    limit = sizes(server).agent_limit
    resources: Json = {"requests": {"cpu": "20m", "memory": quantity(AGENT_REQUEST)}}
    if limit is not None:
        resources["limits"] = {"memory": quantity(limit)}
    return {"name": "agent", "resources": resources, "securityContext": _READ_ONLY}


def engine_defaults(server: InferenceServer) -> Json:
    """Return what a template may change of the engine's container."""
    size = sizes(server)
    resources: Json = {"requests": {"memory": quantity(size.engine_request)}}
    if size.engine_limit is not None:
        resources["limits"] = {"memory": quantity(size.engine_limit)}
    return {"name": "engine", "resources": resources, "securityContext": _CONFINED}


# fixed


def payload_fixed(site: Site) -> Json:
    """Return the payload's container as it must be."""
    return {
        "name": "payload",
        **_image(site),
        **_SAYS_WHY,
        "command": ["/opt/ebbtide/copy-payload", "/payload"],
        "volumeMounts": [{"name": "ebbtide-payload", "mountPath": "/payload"}],
    }


def agent_fixed(server: InferenceServer, site: Site, *, handoff: bool) -> Json:
    """Return the agent's container as it must be."""
    return {
        "name": "agent",
        **_image(site),
        **_SAYS_WHY,
        "restartPolicy": "Always",
        "command": [_PYTHON, "-m", "ebbtide_runtime.agent", "--member", MEMBER_PATH],
        "env": [*_identity(server), *_agent_env(server, site)],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT, "protocol": "TCP"}],
        "startupProbe": _probe("/health", AGENT_PORT, scheme="HTTPS", period=1, failures=60),
        "livenessProbe": _probe("/health", AGENT_PORT, scheme="HTTPS", period=10, failures=6),
        "volumeMounts": [
            *_shared_mounts(handoff=handoff),
            {"name": "ebbtide-token", "mountPath": TOKEN_DIR, "readOnly": True},
        ],
    }


def engine_fixed(server: InferenceServer, *, handoff: bool) -> Json:
    """Return the engine's container as it must be."""
    port = server.spec.engine.port
    shm = [{"name": "ebbtide-shm", "mountPath": "/dev/shm"}] if sizes(server).shm else []  # noqa: S108
    devices = server.spec.colocation.devices
    claim: Json = {"resources": {"claims": [{"name": "ebbtide-devices"}]}} if devices and devices.claim else {}
    return {
        "name": "engine",
        "image": server.spec.engine.image,
        **_SAYS_WHY,
        "command": ["python3", "-m", "ebbtide_runtime.launch", "--member", MEMBER_PATH],
        "env": [*_identity(server), *_engine_env(server)],
        "ports": [
            {"name": "http", "containerPort": port, "protocol": "TCP"},
            {"name": "probe", "containerPort": PROBE_PORT, "protocol": "TCP"},
        ],
        "startupProbe": _probe("/startup", PROBE_PORT, period=1, failures=120),
        "livenessProbe": _probe("/live", PROBE_PORT, period=10, failures=6),
        "readinessProbe": _probe("/ready", PROBE_PORT, period=1, failures=1),
        "lifecycle": {"preStop": {"sleep": {"seconds": PROPAGATION_S}}},
        "volumeMounts": [
            *_shared_mounts(handoff=handoff),
            {"name": "ebbtide-payload", "mountPath": PAYLOAD_DIR, "readOnly": True},
            {"name": "ebbtide-cache", "mountPath": CACHE_DIR},
            *shm,
        ],
        **claim,
    }


def _image(site: Site) -> Json:
    policy: Json = {"imagePullPolicy": site.pull_policy} if site.pull_policy else {}
    return {"image": site.image, **policy}


def _shared_mounts(*, handoff: bool) -> list[Json]:
    mounts: list[Json] = [
        {"name": "ebbtide-member", "mountPath": MEMBER_DIR, "readOnly": True},
        {"name": "ebbtide-memory", "mountPath": MEMORY_DIR},
        {"name": "ebbtide-home", "mountPath": HOME_DIR},
    ]
    published: list[Json] = [{"name": HANDOFF_VOLUME, "mountPath": HANDOFF_DIR}]
    return mounts + published if handoff else mounts


def _identity(server: InferenceServer) -> list[Json]:
    return [
        _field("EBBTIDE_POD_NAME", "metadata.name"),
        _field("EBBTIDE_POD_UID", "metadata.uid"),
        _value("EBBTIDE_MEMBER_DIGEST", member_digest(server)),
    ]


def _agent_env(server: InferenceServer, site: Site) -> list[Json]:
    return [
        _field("EBBTIDE_POD_IP", "status.podIP"),
        _field("EBBTIDE_POD_NAMESPACE", "metadata.namespace"),
        _value("EBBTIDE_AUDIENCE", audience(server.metadata.uid)),
        _value("EBBTIDE_OPERATOR", site.operator),
        _value("EBBTIDE_GATEWAY", site.gateway_url),
        _value("EBBTIDE_GATEWAY_CA", f"{MEMBER_DIR}/{GATEWAY_CA_FILE}"),
        _value("EBBTIDE_TOKENS", TOKEN_DIR),
    ]


def _engine_env(server: InferenceServer) -> list[Json]:
    devices = server.spec.colocation.devices
    named = devices.env if devices else None
    # The container runtime reads it before any process of ours could set it.
    given = [_value(one.name, one.value) for one in server.spec.engine.env if one.name == named]
    return [
        _value("PYTHONPATH", PAYLOAD_DIR),
        _value("EBBTIDE_DRAIN_S", str(drain_seconds(server))),
        _value("EBBTIDE_PROBE_PORT", str(PROBE_PORT)),
        # No user of that number need exist in the image: its name and its home come from here.
        _value("HOME", CACHE_DIR),
        _value("USER", "ebbtide"),
        *given,
    ]


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _value(name: str, value: str) -> Json:
    return {"name": name, "value": value}


def _probe(path: str, port: int, *, period: int, failures: int, scheme: str = "HTTP") -> Json:
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def token_sources() -> list[Json]:
    """Return the agent's two tokens, and the roots by which it knows the API server.

    One is for the gateway, where the agent enrols; the other reads the API server's signing keys, and nothing else.
    """
    return [
        {"serviceAccountToken": {"path": "gateway", "audience": GATEWAY_AUDIENCE, "expirationSeconds": 3600}},
        {"serviceAccountToken": {"path": "api", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
