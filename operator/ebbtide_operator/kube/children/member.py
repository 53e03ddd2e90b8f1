"""What the members of a server are told: one member.json for all; each pod's environment says which one it is."""

from __future__ import annotations

import hashlib
import json

from ebbtide_api.member import Engine, MemberConfig
from ebbtide_api.server import Handoff, InferenceServer

from ..names import (
    AGENT_PORT,
    GATEWAY_CA_FILE,
    HANDOFF_DIR,
    HOME_DIR,
    MEMBER_FILE,
    MEMORY_DIR,
    Json,
    member_config_map,
)
from .metadata import metadata
from .site import Site
from .sizes import cpu_budget, host_limit

ANYWHERE = "0.0.0.0"  # noqa: S104 - in a pod: clients reach the gate by the pod's address


def engine_of(server: InferenceServer) -> Engine:
    """Return the kind of device: GPUs when a claim or a variable names them."""
    devices = server.spec.colocation.devices
    return Engine.CUDA if devices and (devices.claim or devices.env) else Engine.CPU


def device_of(server: InferenceServer) -> str:
    """Return the name by which servers that share a device are known to."""
    devices = server.spec.colocation.devices
    if devices and devices.claim:
        return f"claim:{devices.claim}"
    return f"gpu:{devices.env}" if devices and devices.env else "cpu0"


def handoff_of(server: InferenceServer) -> Handoff:
    """Return how weights come in: streamed to the agents unless the spec says otherwise."""
    return server.spec.weights.handoff or Handoff.STREAM


def handoff_folder(server: InferenceServer) -> str:
    """Return the folder, in a member's containers, in which published weights lie."""
    streamed = handoff_of(server) in (Handoff.STREAM, Handoff.NONE)
    return f"{MEMORY_DIR}/handoff" if streamed else f"{HANDOFF_DIR}/{server.group}"


def member_config(server: InferenceServer) -> MemberConfig:
    """Return the configuration of member 0. The pods' own names take the place of its name, uid and ordinal."""
    spec = server.spec
    return MemberConfig(
        name=f"{server.name}-0",
        uid="",
        server=server.name,
        group=server.group,
        ordinal=0,
        home=HOME_DIR,
        memory=MEMORY_DIR,
        handoff=handoff_folder(server),
        host=ANYWHERE,
        data_port=spec.engine.port,
        agent_port=AGENT_PORT,
        engine=engine_of(server),
        model=spec.model.source,
        served_name=server.served_name,
        revision=spec.model.revision,
        quantization=spec.model.quantization,
        tensor_parallel=spec.parallelism.tensor,
        pipeline_parallel=spec.parallelism.pipeline,
        extra_args=list(spec.engine.extra_args),
        env={variable.name: variable.value for variable in spec.engine.env},
        device_id=device_of(server),
        device_budget=cpu_budget(server) or 0,
        host_memory_limit=host_limit(server),
        parking=spec.sleep.parking,
        level=spec.sleep.level.number,
        canary=spec.weights.canary.request,
    )


def member_file(server: InferenceServer) -> str:
    """Return member.json, always with the same bytes for the same spec."""
    return json.dumps(member_config(server).wire(), sort_keys=True, indent=1)


def member_digest(server: InferenceServer) -> str:
    """Return what a pod compares member.json with: a ConfigMap changes under running pods, their template does not."""
    return hashlib.sha256(member_file(server).encode()).hexdigest()


def config_map(server: InferenceServer, site: Site) -> Json:
    """Return the ConfigMap of a server."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(server, member_config_map(server.name)),
        "data": {MEMBER_FILE: member_file(server), GATEWAY_CA_FILE: site.gateway_ca},
    }
