"""InferenceServer: a model served by one or more replicas, whose memory can be lent (DESIGN 4)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .engine_spec import EngineSpec, Model, Parallelism
from .quantity import Duration, Quantity
from .resource import API_VERSION, NAME, NAME_LENGTH, Resource
from .server_status import ServerStatus
from .sleep_spec import Sleep
from .spec import Between, Spec, rule, transition
from .verbs import Canary

LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


class Power(StrEnum):
    """Whether a server should serve or sleep."""

    AWAKE = "Awake"
    ASLEEP = "Asleep"


class Role(StrEnum):
    """Which part of a request a server computes."""

    BOTH = "Both"
    PREFILL = "Prefill"
    DECODE = "Decode"


class Handoff(StrEnum):
    """How new weights travel from a trainer to the members."""

    STREAM = "Stream"
    SHARED_MEMORY = "SharedMemory"
    DISK = "Disk"
    NONE = "None"


class Transport(StrEnum):
    """How KV blocks travel from a prefill to a decode server."""

    STORE = "Store"
    NIXL = "Nixl"


class LoadFailure(StrEnum):
    """What a decode server does when blocks cannot be fetched."""

    RECOMPUTE = "Recompute"
    FAIL = "Fail"


class CpuDevice(Spec):
    """Host memory that plays the device of a CPU engine."""

    memory: Annotated[Quantity, Between(Quantity("64Mi"), Quantity("1Pi"))] = Field(
        description="The budget of bytes that engine and trainer share, each process's own memory included."
    )


class Devices(Spec):
    """Which devices the group shares. Exactly one of the fields is set."""

    claim: str | None = Field(
        None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="The ResourceClaim that engine and trainer pods both use.",
    )
    env: str | None = Field(
        None,
        max_length=128,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that names the devices, such as NVIDIA_VISIBLE_DEVICES.",
    )
    cpu: CpuDevice | None = Field(None, description="The engine runs on the CPU, in local mode and in tests.")

    @rule(
        "[has(self.claim), has(self.env), has(self.cpu)].filter(x, x).size() == 1", "set exactly one of claim, env, cpu"
    )
    def _exactly_one(self) -> bool:
        return [self.claim, self.env, self.cpu].count(None) == 2


class TurnsSpec(Spec):
    """Servers of one group that take turns: at most one of them is awake."""

    minimum: Annotated[Duration, Between(Duration("0s"), Duration("24h"))] = Field(
        Duration("10s"), description="How long a server serves at least before another one that is asked gets its turn."
    )


class Colocation(Spec):
    """What the server shares with other servers and trainers."""

    group: str | None = Field(
        None,
        max_length=63,
        pattern=LABEL,
        description="The group whose devices are lent as one. Absent means a group of the server's own name."
        " It cannot be changed.",
    )
    host_memory_limit: Annotated[Quantity, Between(Quantity("0"), Quantity("1Pi"))] | None = Field(
        None,
        description="At most this much host memory for parked weights and the member's copies of published weights,"
        " per member. Absent means no limit.",
    )
    devices: Devices | None = Field(None, description="The devices that the group shares.")
    turns: TurnsSpec | None = Field(
        None,
        description="Take turns with the other servers of the group that say so too: one is awake, the others sleep,"
        " and a request for one of these gets it the next turn. Such a group has no trainer."
        " Absent means that all of the group's servers are awake.",
    )


class CanarySpec(Spec):
    """A greedy request that must be answered right before a member takes requests."""

    prompt: str = Field("ebb and flow", min_length=1, max_length=4096, pattern=r"^[^\x00]+$", description="The prompt.")
    tokens: int = Field(4, ge=1, le=256, description="How many tokens are asked for and compared.")

    @property
    def request(self) -> Canary:
        """The canary as the verbs carry it."""
        return Canary(prompt=self.prompt, tokens=self.tokens)


class WeightsSpec(Spec):
    """How new weights come in, and how they are checked."""

    handoff: Handoff | None = Field(
        None,
        description="How a trainer's weights reach the members: Stream sends them to the agents; SharedMemory is a"
        " memory-backed folder of the group; Disk a shared file system; None takes no new weights."
        " Absent means Stream on a cluster and SharedMemory in local mode.",
    )
    canary: CanarySpec = Field(CanarySpec(), description="The request that proves a member answers right.")


class ObjectRef(Spec):
    """Another object in the same namespace."""

    name: str = Field(pattern=NAME, min_length=1, max_length=NAME_LENGTH, description="The object's name.")


class Pair(Spec):
    """Where a decode server takes KV blocks from."""

    prefill: ObjectRef = Field(description="The InferenceServer of role Prefill.")
    transport: Transport = Field(
        Transport.STORE,
        description="Store: from the peer's store, by shared memory or TCP. Nixl: from device to device.",
    )
    load_failure: LoadFailure = Field(
        LoadFailure.RECOMPUTE, description="When blocks cannot be fetched: Recompute them here, or Fail the request."
    )
    min_prompt_tokens: int = Field(
        256, ge=0, le=10_000_000, description="Shorter prompts are prefilled by the decode server itself."
    )


class ServerSpec(Spec):
    """The server that is wanted."""

    model: Model = Field(description="The model to serve.")
    replicas: int = Field(1, ge=1, le=256, description="How many engines serve the model.")
    awake_replicas: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="How many of the replicas are awake; the others sleep. Absent, or more than replicas, means all."
        " `kubectl scale` sets it: scaling to zero puts all to sleep and removes none.",
    )
    power: Power = Field(
        Power.AWAKE, description="Awake or Asleep, whatever awakeReplicas says. A lease overrides it while it is held."
    )
    parallelism: Parallelism = Field(Parallelism(), description="How one replica is spread over devices.")
    engine: EngineSpec = Field(EngineSpec(), description="The engine that serves the model.")
    template: dict[str, JsonValue] | None = Field(
        None,
        description="A patch of the pods' PodTemplateSpec: resources, volumes, node selection, claims."
        " It is checked by a server-side dry run.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    sleep: Sleep = Field(Sleep(), description="How the server sleeps.")
    colocation: Colocation = Field(Colocation(), description="What the server shares with others.")
    weights: WeightsSpec = Field(WeightsSpec(), description="How new weights come in, and how they are checked.")
    role: Role = Field(Role.BOTH, description="Both, or one half of a pair: Prefill or Decode. It cannot be changed.")
    pair: Pair | None = Field(None, description="Where a server of role Decode takes KV blocks from.")
    cache_policy: ObjectRef | None = Field(
        None, description="The KVCachePolicy that the server follows. Absent means a KV cache on the device alone."
    )

    @rule(
        "has(self.pair) == (self.role == 'Decode')", "role Decode needs pair, and no other role takes it", field="pair"
    )
    def _pair_goes_with_decode(self) -> bool:
        return (self.pair is not None) == (self.role is Role.DECODE)

    @transition("self.role == oldSelf.role", "role cannot be changed: make another server", field="role")
    def _role_stays(self, old: ServerSpec) -> bool:
        return self.role is old.role


class InferenceServer(Resource):
    """A model served by one or more vLLM engines, whose device memory can be lent, measured, and taken back."""

    api_version: Literal["ebbtide.dev/v1alpha1"] = Field(API_VERSION, description="The version of the schema.")
    kind: Literal["InferenceServer"] = Field("InferenceServer", description="The kind of the object.")
    spec: ServerSpec = Field(description="The server that is wanted.")
    status: ServerStatus | None = Field(None, description="What was observed of the server.")

    @property
    def group(self) -> str:
        """The group whose lease says who may use the devices."""
        return self.spec.colocation.group or self.name

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.spec.model.served_name or self.name

    @rule(
        "!has(self.spec.pair) || self.spec.pair.prefill.name != self.metadata.name",
        "a server cannot be its own prefill",
        field="spec.pair",
    )
    def _not_its_own_peer(self) -> bool:
        return self.spec.pair is None or self.spec.pair.prefill.name != self.name

    @transition(
        "(has(self.spec.colocation.group) ? self.spec.colocation.group : self.metadata.name)"
        " == (has(oldSelf.spec.colocation.group) ? oldSelf.spec.colocation.group : oldSelf.metadata.name)",
        "colocation.group cannot be changed, since its lease may be held: make another server",
        field="spec.colocation.group",
    )
    def _group_stays(self, old: InferenceServer) -> bool:
        return self.group == old.group
