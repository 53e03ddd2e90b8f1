"""Good and bad objects, shown to our models and (tests/unit/api/test_cluster.py) to a real API server alike."""

import copy
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
REMOVE = object()


@dataclass(frozen=True)
class Case:
    """An object made from a base by changes (`a.b.c` -> value). `field` and `why` are what a refusal must name."""

    name: str
    base: Object
    changes: dict[str, Any]
    field: str = ""
    why: str = ""

    def object(self) -> Object:
        made = copy.deepcopy(self.base)
        for path, value in self.changes.items():
            *parents, last = path.split(".")
            inner = made
            for step in parents:
                inner = inner.setdefault(step, {})
            if value is REMOVE:
                del inner[last]
            else:
                inner[last] = copy.deepcopy(value)
        return made


SERVER: Object = {
    "apiVersion": "ebbtide.dev/v1alpha1",
    "kind": "InferenceServer",
    "metadata": {"name": "tiny"},
    "spec": {"model": {"source": "/models/tiny"}},
}
POLICY: Object = {
    "apiVersion": "ebbtide.dev/v1alpha1",
    "kind": "KVCachePolicy",
    "metadata": {"name": "default"},
    "spec": {"tiers": {"dram": {"capacity": "32Gi"}, "disk": {"capacity": "500Gi"}}},
}
PAIR = {"prefill": {"name": "chat-prefill"}}


def server(name: str, *problem: str, **changes: Any) -> Case:
    return Case(name, SERVER, {path.replace("__", "."): value for path, value in changes.items()}, *problem)


def policy(name: str, *problem: str, **changes: Any) -> Case:
    return Case(name, POLICY, {path.replace("__", "."): value for path, value in changes.items()}, *problem)


GOOD = [
    server("least"),
    server("longest name", metadata__name="a" * 52),
    server("a hub's model", spec__model__source="Qwen/Qwen3-0.6B"),
    server("scaled to zero", spec__replicas=2, spec__awakeReplicas=0),
    server("scaled beyond replicas", spec__replicas=2, spec__awakeReplicas=9),
    server("asleep", spec__power="Asleep"),
    server("decode", spec__role="Decode", spec__pair=PAIR),
    server("prefill", spec__role="Prefill"),
    server("bare integer as bytes", spec__colocation={"devices": {"cpu": {"memory": 8589934592}}}),
    server("fraction of bytes", spec__colocation={"hostMemoryLimit": "1.5Gi"}),
    server("no bytes", spec__colocation={"hostMemoryLimit": 0}),
    server("claim", spec__colocation={"devices": {"claim": "gpus"}}),
    server("devices by variable", spec__colocation={"devices": {"env": "NVIDIA_VISIBLE_DEVICES"}}),
    server("long sleep", spec__sleep={"idle": {"after": "10m", "deeperAfter": "1h"}, "settle": "0s"}),
    server("held while it wakes", spec__sleep={"idle": {"after": "10m"}, "holdFor": "30s"}),
    server("not woken by requests", spec__sleep={"idle": {"after": "10m"}, "wakeOnRequest": False, "holdFor": "0s"}),
    server("idle for ever at one level", spec__sleep={"idle": {"after": "10m"}}),
    server("drain", spec__sleep={"drain": {"mode": "Abort", "timeout": "1h30m", "onDeadline": "Fail"}}),
    server("never parked", spec__sleep={"level": "Discarded", "parking": "Never"}),
    server("flags like ours", spec__engine={"extraArgs": ["--model-impl=vllm", "--max-model-len", "4096", "--seed=1"]}),
    server("environment", spec__engine={"env": [{"name": "A", "value": "1"}, {"name": "EBBTIDE_AMX", "value": "1"}]}),
    server("template", spec__template={"spec": {"nodeSelector": {"gpu": "yes"}, "anything": [1, {"deep": None}]}}),
    server("no hand-off", spec__weights={"handoff": "None", "canary": {"prompt": "hello", "tokens": 256}}),
    policy("least"),
    policy("no tiers", spec__tiers={}),
    policy("pvc", spec__tiers__disk__volume={"persistentVolumeClaim": {"storageClassName": "fast"}}),
    policy("host path", spec__tiers__disk__volume={"hostPath": {"path": "/var/cache/kv"}}),
    policy("quotas", spec__quotas=[{"tenant": "a", "dram": "4Gi"}, {"tenant": "b", "disk": "50Gi"}]),
    policy("all pinned but the reserve", spec__eviction={"reserve": "10%"}, spec__contexts={"maxPinnedRatio": "90%"}),
    policy("no cascade", spec__cascade={"dramToDisk": "Never"}),
    policy("one TTL", spec__contexts={"defaultTTL": "60m", "maxTTL": "1h"}),
]

_LIMIT = "spec.colocation.hostMemoryLimit"
_TIMEOUT = "spec.sleep.drain.timeout"
_ARG = "spec.engine.extraArgs[0]"

BAD = [
    server("no spec", "spec", spec=REMOVE),
    server("no model", "spec.model", spec__model=REMOVE),
    server("no source", "spec.model.source", spec__model__source=REMOVE),
    server("empty source", "spec.model.source", spec__model__source=""),
    server("a flag as source", "spec.model.source", spec__model__source="--port=1"),
    server("line break in source", "spec.model.source", spec__model__source="/a\nb"),
    server("relative source", "spec.model.source", "absolute", spec__model__source="./models/tiny"),
    server("source above", "spec.model.source", "absolute", spec__model__source="../tiny"),
    server("name of 53", "metadata.name", metadata__name="a" * 53),
    server("name with dots", "metadata.name", metadata__name="a.b"),
    server("name with a digit first", "metadata.name", metadata__name="1a"),
    server("unknown field", "spec.replica", spec__replica=2),
    server("unknown field deep", "spec.sleep.drain.time", spec__sleep__drain={"time": "3s"}),
    server("no replicas", "spec.replicas", spec__replicas=0),
    server("too many replicas", "spec.replicas", spec__replicas=257),
    server("replicas as a string", "spec.replicas", spec__replicas="2"),
    server("negative awake", "spec.awakeReplicas", spec__awakeReplicas=-1),
    server("wrong power", "spec.power", spec__power="awake"),
    server("no tensor rank", "spec.parallelism.tensor", spec__parallelism={"tensor": 0}),
    server("port 0", "spec.engine.port", spec__engine={"port": 0}),
    server("port 65536", "spec.engine.port", spec__engine={"port": 65536}),
    server("version as a float", "spec.engine.version", spec__engine={"version": 0.32}),
    server("version in words", "spec.engine.version", spec__engine={"version": "latest"}),
    server("our flag", _ARG, "Ebbtide sets", spec__engine={"extraArgs": ["--port=9"]}),
    server("our flag, two words", _ARG, "Ebbtide sets", spec__engine={"extraArgs": ["--middleware", "x.y"]}),
    server("our flag, underscores", _ARG, "Ebbtide sets", spec__engine={"extraArgs": ["--kv_transfer_config={}"]}),
    server("our flag, short", _ARG, "Ebbtide sets", spec__engine={"extraArgs": ["-tp=2"]}),
    server("empty argument", _ARG, spec__engine={"extraArgs": [""]}),
    server("too many arguments", "spec.engine.extraArgs", spec__engine={"extraArgs": ["--a"] * 129}),
    server("our variable", "spec.engine.env[0]", "Ebbtide sets", spec__engine={"env": [{"name": "PYTHONPATH"}]}),
    server("variable with a dash", "spec.engine.env[0].name", spec__engine={"env": [{"name": "A-B"}]}),
    server("variable without a name", "spec.engine.env[0].name", spec__engine={"env": [{"value": "1"}]}),
    server("template is a list", "spec.template", spec__template=[]),
    server("duration without unit", _TIMEOUT, spec__sleep__drain={"timeout": "30"}),
    server("duration as a number", _TIMEOUT, spec__sleep__drain={"timeout": 30}),
    server("duration in days", _TIMEOUT, spec__sleep__drain={"timeout": "1d"}),
    server("no time to drain", _TIMEOUT, "at least 1ms", spec__sleep__drain={"timeout": "0s"}),
    server("a long drain", _TIMEOUT, "at most 24h", spec__sleep__drain={"timeout": "24h1s"}),
    server("overflowing duration", _TIMEOUT, spec__sleep__drain={"timeout": "999999999h"}),
    server("keep is no way to sleep", "spec.sleep.drain.mode", spec__sleep__drain={"mode": "Keep"}),
    server("settled for ever", "spec.sleep.settle", "at most 60s", spec__sleep={"settle": "61s"}),
    server("level as a number", "spec.sleep.level", spec__sleep={"level": 1}),
    server("parking Off", "spec.sleep.parking", spec__sleep={"parking": False}),
    server("parked, never", "spec.sleep.parking", "parked copy", spec__sleep={"level": "Parked", "parking": "Never"}),
    server(
        "held for nothing", "spec.sleep.holdFor", "for a wake", spec__sleep={"wakeOnRequest": False, "holdFor": "1s"}
    ),
    server("held for a day", "spec.sleep.holdFor", "at most 1h", spec__sleep={"holdFor": "24h"}),
    server(
        "deeper before asleep",
        "spec.sleep.idle.deeperAfter",
        "not before",
        spec__sleep={"idle": {"after": "1h", "deeperAfter": "59m"}},
    ),
    server("upper case group", "spec.colocation.group", spec__colocation={"group": "Actor"}),
    server("unknown suffix", _LIMIT, spec__colocation={"hostMemoryLimit": "1Zi"}),
    server("negative bytes", _LIMIT, spec__colocation={"hostMemoryLimit": -1}),
    server("half a byte", _LIMIT, spec__colocation={"hostMemoryLimit": "0.3Ki"}),
    server("too many bytes", _LIMIT, "at most 1Pi", spec__colocation={"hostMemoryLimit": "2Pi"}),
    server("no device", "spec.colocation.devices", "exactly one", spec__colocation={"devices": {}}),
    server(
        "two devices",
        "spec.colocation.devices",
        "exactly one",
        spec__colocation={"devices": {"claim": "a", "env": "B"}},
    ),
    server(
        "tiny device",
        "spec.colocation.devices.cpu.memory",
        "at least 64Mi",
        spec__colocation={"devices": {"cpu": {"memory": "1Mi"}}},
    ),
    server("no tokens", "spec.weights.canary.tokens", spec__weights={"canary": {"tokens": 0}}),
    server("wrong hand-off", "spec.weights.handoff", spec__weights={"handoff": "Pigeon"}),
    server("decode alone", "spec.pair", "role Decode", spec__role="Decode"),
    server("pair of both", "spec.pair", "role Decode", spec__pair=PAIR),
    server("its own peer", "spec.pair", "own prefill", spec__role="Decode", spec__pair={"prefill": {"name": "tiny"}}),
    policy("no capacity", "spec.tiers.dram.capacity", spec__tiers__dram={}),
    policy("tiny capacity", "spec.tiers.dram.capacity", "at least 1Mi", spec__tiers__dram={"capacity": "1Ki"}),
    policy("no volume", "spec.tiers.disk.volume", "exactly one", spec__tiers__disk__volume={}),
    policy(
        "two volumes",
        "spec.tiers.disk.volume",
        "exactly one",
        spec__tiers__disk__volume={"emptyDir": {}, "hostPath": {"path": "/x"}},
    ),
    policy(
        "relative host path",
        "spec.tiers.disk.volume.hostPath.path",
        spec__tiers__disk__volume={"hostPath": {"path": "x/y"}},
    ),
    policy("percent above all", "spec.eviction.reserve", spec__eviction={"reserve": "101%"}),
    policy("percent as a number", "spec.eviction.reserve", spec__eviction={"reserve": 10}),
    policy("TTLs crossed", "spec.contexts.maxTTL", "not below", spec__contexts={"defaultTTL": "2h", "maxTTL": "1h"}),
    policy(
        "pins take the reserve",
        "spec.contexts.maxPinnedRatio",
        "100%",
        spec__eviction={"reserve": "60%"},
        spec__contexts={"maxPinnedRatio": "50%"},
    ),
    policy("a tenant twice", "spec.quotas", spec__quotas=[{"tenant": "a"}, {"tenant": "a"}]),
    policy(
        "disk quota, no disk",
        "spec.quotas",
        "no disk tier",
        spec__tiers__disk=REMOVE,
        spec__quotas=[{"tenant": "a", "disk": "1Gi"}],
    ),
    policy(
        "dram quota, no dram",
        "spec.quotas",
        "no dram tier",
        spec__tiers__dram=REMOVE,
        spec__quotas=[{"tenant": "a", "dram": "1Gi"}],
    ),
]

CHANGES = [
    ("role", {"spec.role": "Prefill"}, "spec.role", "cannot be changed"),
    ("group", {"spec.colocation": {"group": "critic"}}, "spec.colocation.group", "cannot be changed"),
]
