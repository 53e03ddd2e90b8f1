"""What this version honours of a spec, in local mode. The rest is refused by name: nothing is silently ignored.

    unsupported(server)          [("spec.role", "pairs of prefill and decode servers come later"), ...]
    require_supported(server)    raises NOT_YET_SUPPORTED with those paths

The check is deny by default: a field that the user set to something else than its default must be on the list of
honoured ones, so that a field added to the model is refused until somebody honours it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from .errors import EbbtideError, ErrorCode
from .policy import KVCachePolicy
from .reserved import flag_of
from .server import Handoff, InferenceServer

Refusal = tuple[str, str]

_HONOURED = frozenset(
    {
        "spec.model.source",
        "spec.model.servedName",
        "spec.model.quantization",
        "spec.replicas",
        "spec.awakeReplicas",
        "spec.power",
        "spec.parallelism.tensor",
        "spec.engine.extraArgs",
        "spec.engine.env",
        "spec.engine.port",
        "spec.engine.version",
        "spec.sleep.level",
        "spec.sleep.parking",
        "spec.sleep.settle",
        "spec.sleep.idle.after",
        "spec.sleep.idle.deeperAfter",
        "spec.sleep.wakeOnRequest",
        "spec.sleep.holdFor",
        "spec.sleep.drain.mode",
        "spec.sleep.drain.timeout",
        "spec.sleep.drain.onDeadline",
        "spec.colocation.group",
        "spec.colocation.hostMemoryLimit",
        "spec.colocation.devices.cpu.memory",
        "spec.colocation.devices.env",
        "spec.colocation.turns.minimum",
        "spec.weights.handoff",
        "spec.weights.canary.prompt",
        "spec.weights.canary.tokens",
    }
)

_WHY = {
    "metadata.namespace": "local mode has no namespaces",
    "spec.model.revision": "models are read from a folder; no hub is asked for a revision",
    "spec.parallelism.pipeline": "replicas with more than one pipeline stage come later",
    "spec.engine.image": "local mode starts processes, not containers",
    "spec.template": "local mode starts processes, not pods",
    "spec.colocation.devices.claim": "ResourceClaims need a cluster; use devices.cpu or devices.env",
    "spec.role": "pairs of prefill and decode servers come later",
    "spec.pair": "pairs of prefill and decode servers come later",
    "spec.cachePolicy": "KV cache tiers come later",
}
_LATER = "this version does not honour it yet"

# Flags that would change what Ebbtide measures, parks or asks for, and that it does not follow yet.
_FLAGS = {
    "--api-key": "the canary cannot authenticate yet",
    "--cpu-offload-gb": "offloaded weights are not parked yet",
    "--data-parallel-size": "use replicas: one replica is one engine",
    "-dp": "use replicas: one replica is one engine",
    "--enable-cumem-allocator": "Ebbtide chooses the allocator",
    "--enable-lora": "adapters are not parked or reloaded yet",
    "--kv-offloading-backend": "KV cache tiers come later",
    "--kv-offloading-size": "KV cache tiers come later",
    "--lora-modules": "adapters are not parked or reloaded yet",
    "--nnodes": "a replica lives on one machine",
    "-n": "a replica lives on one machine",
    "--offload-backend": "offloaded weights are not parked yet",
    "--prefill-context-parallel-size": "context-parallel ranks are not followed yet",
    "-pcp": "context-parallel ranks are not followed yet",
    "--root-path": "the gate knows the engine's paths without a prefix",
    "--spec-model": "draft models are not parked or reloaded yet",
    "--speculative-config": "draft models are not parked or reloaded yet",
    "-sc": "draft models are not parked or reloaded yet",
    "--ssl-certfile": "the agent speaks plain HTTP to its engine",
    "--ssl-keyfile": "the agent speaks plain HTTP to its engine",
    "--weight-transfer-config": "weights come by Ebbtide's hand-off",
}
_VARIABLES = {"VLLM_API_KEY": "the canary cannot authenticate yet"}


def unsupported(resource: InferenceServer | KVCachePolicy) -> list[Refusal]:
    """Return (path, why) for everything that the user asked for and this version does not honour in local mode."""
    if isinstance(resource, KVCachePolicy):
        return [("kind", "KV cache tiers, and policies for them, come later")]
    return [*_namespace(resource), *_not_honoured(resource.spec, "spec"), *_values(resource), *_engine(resource)]


def require_supported(resource: InferenceServer | KVCachePolicy) -> None:
    """Raise NOT_YET_SUPPORTED, naming every field, if something is not honoured."""
    if not (refused := unsupported(resource)):
        return
    listed = "; ".join(f"{path}: {why}" for path, why in refused)
    raise EbbtideError(
        ErrorCode.NOT_YET_SUPPORTED,
        f"{resource.kind} {resource.name}: {listed}.",
        field=refused[0][0],
        fields=[{"field": path, "message": why} for path, why in refused],
    )


def _namespace(server: InferenceServer) -> Iterator[Refusal]:
    if server.metadata.namespace not in ("", "default"):
        yield "metadata.namespace", _WHY["metadata.namespace"]


def _not_honoured(part: BaseModel, path: str) -> Iterator[Refusal]:
    """Yield the fields that were set to something else than their default, and are not on the list."""
    for name, field in type(part).model_fields.items():
        value, inner = getattr(part, name), f"{path}.{field.alias}"
        if (
            name not in part.model_fields_set
            or value is None
            or inner in _HONOURED
            or (value == field.get_default() and not field.is_required())
        ):
            continue
        if isinstance(value, BaseModel) and any(one.startswith(f"{inner}.") for one in _HONOURED):
            yield from _not_honoured(value, inner)
        else:
            yield inner, _WHY.get(inner, _LATER)


def _values(server: InferenceServer) -> Iterator[Refusal]:
    """Yield the honoured fields whose value is not."""
    spec = server.spec
    if not spec.model.source.startswith("/"):
        hint = f"write ./{spec.model.source} for a folder beside the file"
        yield "spec.model.source", f"models are not fetched from a hub yet: give the path of a folder ({hint})"
    if spec.awake_replicas is not None and spec.awake_replicas < spec.replicas:
        yield "spec.awakeReplicas", "replicas sleep and wake together in this version; use power: Asleep"
    if spec.weights.handoff is Handoff.DISK:
        yield "spec.weights.handoff", "Disk comes later; use SharedMemory, Stream, or None"


def _engine(server: InferenceServer) -> Iterator[Refusal]:
    for index, argument in enumerate(server.spec.engine.extra_args):
        if why := _FLAGS.get(flag_of(argument)):
            yield f"spec.engine.extraArgs[{index}]", f"{flag_of(argument)}: {why}"
    for index, variable in enumerate(server.spec.engine.env):
        if why := _VARIABLES.get(variable.name):
            yield f"spec.engine.env[{index}]", f"{variable.name}: {why}"
