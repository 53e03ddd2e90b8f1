"""From an applied server to what plans and members are told of it; and what is refused before it is applied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import RECEIVED, Engine, MemberConfig
from ebbtide_api.server import Handoff, InferenceServer, Power
from ebbtide_api.supported import require_supported

from .drive.layout import Layout
from .plan import Idle, ServerView, Turns

MIB = 1 << 20


def group_of(server: InferenceServer) -> str:
    """Return the group whose lease says who may use the server's devices."""
    return server.group


def engine_of(server: InferenceServer) -> Engine:
    """Return the kind of device: the CPU unless the spec names GPUs."""
    devices = server.spec.colocation.devices
    return Engine.CUDA if devices and devices.env else Engine.CPU


def device_of(server: InferenceServer) -> str:
    """Return the name of the server's device."""
    devices = server.spec.colocation.devices
    return f"gpu:{devices.env}" if devices and devices.env else "cpu0"


def is_on_gpu(server: InferenceServer) -> bool:
    """Say whether a server's device is a GPU: how large that is, and what others hold of it, nobody measures."""
    devices = server.spec.colocation.devices
    return bool(devices and devices.env)


def is_streamed(server: InferenceServer) -> bool:
    """Say whether weights are sent to the server's agents; locally that is not the default."""
    return server.spec.weights.handoff is Handoff.STREAM


def budget_of(server: InferenceServer) -> int:
    """Return the bytes that engine and trainer share: as declared, else all memory of the machine (CPU)."""
    devices = server.spec.colocation.devices
    if devices and devices.cpu:
        return devices.cpu.memory.bytes
    return 0 if devices and devices.env else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def awake_of(server: InferenceServer) -> int:
    """Return how many of the replicas shall be awake, by the spec."""
    spec = server.spec
    awake = spec.replicas if spec.awake_replicas is None else min(spec.awake_replicas, spec.replicas)
    return awake if spec.power is Power.AWAKE else 0


def view(server: InferenceServer) -> ServerView:
    """Return a server as plans see it."""
    spec = server.spec
    return ServerView(
        name=server.name,
        model=spec.model.source,
        replicas=spec.replicas,
        awake=awake_of(server),
        level=spec.sleep.level.number,
        drain=spec.sleep.drain.request,
        settle=spec.sleep.settle.seconds,
        canary=spec.weights.canary.request,
        device=device_of(server),
        budget_mib=budget_of(server) / MIB,
        idle=_idle(server),
        turns=_turns(server),
    )


def _turns(server: InferenceServer) -> Turns | None:
    turns = server.spec.colocation.turns
    return Turns(turns.minimum.seconds, server.spec.sleep.hold_for.seconds) if turns else None


def _idle(server: InferenceServer) -> Idle | None:
    sleep = server.spec.sleep
    if sleep.idle is None:
        return None
    return Idle(
        after=sleep.idle.after.seconds,
        deeper=sleep.idle.deeper_after.seconds if sleep.idle.deeper_after else None,
        wakes=sleep.wake_on_request,
        hold=sleep.hold_for.seconds,
    )


def member_config(server: InferenceServer, ordinal: int, layout: Layout, *, uid: str, agent_port: int) -> MemberConfig:
    """Return what a member is told at birth."""
    spec, name = server.spec, f"{server.name}-{ordinal}"
    limit = spec.colocation.host_memory_limit
    return MemberConfig(
        name=name,
        uid=uid,
        server=server.name,
        group=server.group,
        ordinal=ordinal,
        home=str(layout.member(name)),
        memory=str(layout.member_memory(name)),
        handoff=str(layout.member_memory(name) / RECEIVED if is_streamed(server) else layout.handoff(server.group)),
        data_port=spec.engine.port + ordinal,
        agent_port=agent_port,
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
        device_budget=budget_of(server),
        host_memory_limit=limit.bytes if limit else None,
        parking=spec.sleep.parking,
        level=spec.sleep.level.number,
        canary=spec.weights.canary.request,
    )


def check(servers: Mapping[str, InferenceServer], new: Iterable[InferenceServer]) -> None:
    """Refuse servers that cannot run here. Raises EbbtideError that names the field."""
    for server in new:
        require_supported(server)
        _require_model(server)
    _require_distinct_ports(servers)
    _require_one_budget(servers)
    _require_one_handoff(servers)


def _require_model(server: InferenceServer) -> None:
    source = Path(server.spec.model.source)
    if not (source / "config.json").is_file():
        message = f"{server.name}: spec.model.source: {source} holds no model (no config.json is there)"
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, field="spec.model.source", server=server.name)


def _require_distinct_ports(servers: Mapping[str, InferenceServer]) -> None:
    taken: dict[int, str] = {}
    for server in servers.values():
        for port in range(server.spec.engine.port, server.spec.engine.port + server.spec.replicas):
            other = taken.setdefault(port, server.name)
            if other != server.name or port > 65535:
                message = f"{server.name}: spec.engine.port: port {port} is {other}'s; each replica takes one"
                raise EbbtideError(ErrorCode.INVALID_REQUEST, message, field="spec.engine.port", server=server.name)


def _require_one_budget(servers: Mapping[str, InferenceServer]) -> None:
    budgets: dict[tuple[str, str], InferenceServer] = {}
    for server in servers.values():
        first = budgets.setdefault((server.group, device_of(server)), server)
        if budget_of(first) != budget_of(server):
            message = f"{first.name} and {server.name} share a device and say different things of its memory"
            field = "spec.colocation.devices.cpu.memory"
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{message}: {field}", field=field, server=server.name)


def _require_one_handoff(servers: Mapping[str, InferenceServer]) -> None:
    ways: dict[str, InferenceServer] = {}
    for server in servers.values():
        if server.spec.weights.handoff is Handoff.NONE:
            continue
        first = ways.setdefault(server.group, server)
        if is_streamed(first) != is_streamed(server):
            field = "spec.weights.handoff"
            message = f"{first.name} and {server.name} share group {server.group}, and its weights come in one way"
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{message}: {field}", field=field, server=server.name)


def check_changes(servers: Mapping[str, InferenceServer], new: Iterable[InferenceServer]) -> None:
    """Refuse changes that a server may not undergo. Raises EbbtideError that names the field."""
    for server in new:
        old = servers.get(server.name)
        if old and (forbidden := server.forbidden_changes(old)):
            field, why = forbidden[0]
            raise EbbtideError(ErrorCode.INVALID_REQUEST, f"{server.name}: {field}: {why}", field=field)
