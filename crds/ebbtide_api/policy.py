"""KVCachePolicy: how much memory and disk the KV cache may use, for how long, and who comes first (DESIGN 4 and 6)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import LARGEST_INTEGER, Reading
from .conditions import Condition
from .quantity import Duration, Percent, Quantity
from .resource import API_VERSION, Resource
from .spec import Between, Spec, list_map, rule

_Bytes = Annotated[Quantity, Between(Quantity("1Mi"), Quantity("4Pi"))]
_Ttl = Annotated[Duration, Between(Duration("1s"), Duration("8760h"))]


class Durability(StrEnum):
    """When a block on disk is certain to survive a power cut. A crash of a process never loses or corrupts one."""

    NONE = "None"
    BATCH = "Batch"
    EACH = "Each"


class EvictionPolicy(StrEnum):
    """Which blocks go first."""

    S3FIFO = "S3FIFO"
    LRU = "LRU"


class Cascade(StrEnum):
    """When a block in memory is copied to disk."""

    ON_EVICT = "OnEvict"
    WRITE_THROUGH = "WriteThrough"
    OFF = "Never"  # not "Off": YAML reads a bare Off as false


class OnWeightChange(StrEnum):
    """What becomes of blocks of the old weights."""

    SALT = "Salt"
    EVICT = "Evict"


class OnSleep(StrEnum):
    """What becomes of blocks when a server sleeps."""

    KEEP = "Keep"
    EVICT = "Evict"


class DramTier(Spec):
    """Host memory."""

    capacity: _Bytes = Field(description="Bytes of host memory, per member.")


class EmptyDir(Spec):
    """A folder of the pod's own, gone with the pod. Its size limit is the capacity."""


class VolumeClaim(Spec):
    """A volume claim for each member, made and kept by the operator. Its size is the capacity."""

    storage_class_name: str | None = Field(
        None,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="The StorageClass. Absent means the cluster's default.",
    )


class HostPath(Spec):
    """A folder of the node, which an administrator prepared."""

    path: str = Field(
        min_length=2,
        max_length=4096,
        pattern=r"^/[^\x00-\x1f\x7f]+$",
        description="The folder's absolute path. Members use folders of their own below it.",
    )


class Volume(Spec):
    """Where the disk tier lies. Exactly one of the fields is set."""

    empty_dir: EmptyDir | None = Field(None, description="A folder of the pod's own.")
    persistent_volume_claim: VolumeClaim | None = Field(None, description="A volume claim for each member.")
    host_path: HostPath | None = Field(None, description="A folder of the node.")

    @rule(
        "[has(self.emptyDir), has(self.persistentVolumeClaim), has(self.hostPath)].filter(x, x).size() == 1",
        "set exactly one of emptyDir, persistentVolumeClaim, hostPath",
    )
    def _exactly_one(self) -> bool:
        return [self.empty_dir, self.persistent_volume_claim, self.host_path].count(None) == 2


class DiskTier(Spec):
    """Disk."""

    capacity: _Bytes = Field(description="Bytes of disk, per member. It is taken at the start and never exceeded.")
    volume: Volume = Field(Volume(empty_dir=EmptyDir()), description="Where the files lie.")
    durability: Durability = Field(
        Durability.BATCH,
        description="When written blocks are flushed: None leaves it to the kernel, Batch flushes many at once,"
        " Each flushes every block. Blocks are checked when read in any case.",
    )


class Tiers(Spec):
    """The tiers below the device. An absent tier is not used."""

    dram: DramTier | None = Field(None, description="Host memory.")
    disk: DiskTier | None = Field(None, description="Disk.")


class Eviction(Spec):
    """What is evicted first."""

    policy: EvictionPolicy = Field(EvictionPolicy.S3FIFO, description="The order of eviction: S3FIFO or LRU.")
    reserve: Percent = Field(
        Percent("10%"), description="The share of a tier that pins can never take, so that new blocks always find room."
    )


class Contexts(Spec):
    """Limits of contexts: prompt prefixes that are kept until their TTL ends."""

    default_ttl: _Ttl = Field(Duration("5m"), description="The TTL of a context that asks for none.")
    max_ttl: _Ttl = Field(Duration("24h"), description="The longest TTL; more is cut to it, and the answer says so.")
    min_tokens: int = Field(0, ge=0, le=10_000_000, description="Shorter prefixes are not kept: status skipped.")
    max_pinned_ratio: Percent = Field(
        Percent("50%"), description="The share of a tier that contexts may pin, all together."
    )

    @rule("duration(self.maxTTL) >= duration(self.defaultTTL)", "maxTTL is not below defaultTTL", field="maxTTL")
    def _default_fits(self) -> bool:
        return self.max_ttl.value >= self.default_ttl.value


class Quota(Spec):
    """One tenant's limits. A field that is absent is no limit."""

    tenant: str = Field(
        min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@/-]*$", description="The tenant."
    )
    dram: _Bytes | None = Field(None, description="Bytes of host memory, per member.")
    disk: _Bytes | None = Field(None, description="Bytes of disk, per member.")


class CascadeSpec(Spec):
    """How blocks move between tiers."""

    dram_to_disk: Cascade = Field(
        Cascade.ON_EVICT,
        description="When a block goes to disk: OnEvict, as memory evicts it; WriteThrough, as it is stored; or Never.",
    )


class PolicySpec(Spec):
    """The policy that is wanted."""

    tiers: Tiers = Field(description="The tiers below the device and their sizes.")
    eviction: Eviction = Field(Eviction(), description="What is evicted first.")
    contexts: Contexts = Field(Contexts(), description="Limits of contexts.")
    quotas: tuple[Quota, ...] = Field(
        (),
        max_length=256,
        description="Limits per tenant. A tenant that is not named is unlimited.",
        json_schema_extra=list_map("tenant"),
    )
    cascade: CascadeSpec = Field(CascadeSpec(), description="How blocks move between tiers.")
    on_weight_change: OnWeightChange = Field(
        OnWeightChange.SALT,
        description="When weights change, blocks of the old ones become unreachable (Salt), or are also freed (Evict).",
    )
    on_sleep: OnSleep = Field(
        OnSleep.KEEP, description="When a server sleeps, Keep its blocks, so that waking is warm, or Evict them."
    )

    @rule(
        "has(self.tiers.disk) || !self.quotas.exists(q, has(q.disk))",
        "a quota limits disk, but there is no disk tier",
        field="quotas",
    )
    def _disk_quotas_need_disk(self) -> bool:
        return self.tiers.disk is not None or all(quota.disk is None for quota in self.quotas)

    @rule(
        "has(self.tiers.dram) || !self.quotas.exists(q, has(q.dram))",
        "a quota limits dram, but there is no dram tier",
        field="quotas",
    )
    def _dram_quotas_need_dram(self) -> bool:
        return self.tiers.dram is not None or all(quota.dram is None for quota in self.quotas)

    @rule(
        "int(self.eviction.reserve.replace('%', '')) + int(self.contexts.maxPinnedRatio.replace('%', '')) <= 100",
        "eviction.reserve and contexts.maxPinnedRatio are more than 100% together",
        field="contexts.maxPinnedRatio",
    )
    def _pins_leave_the_reserve(self) -> bool:
        return self.eviction.reserve.value + self.contexts.max_pinned_ratio.value <= 100

    @rule(
        "self.quotas.all(q, self.quotas.exists_one(other, other.tenant == q.tenant))",
        "two quotas name the same tenant",
        field="quotas",
    )
    def _tenants_are_unique(self) -> bool:
        return len({quota.tenant for quota in self.quotas}) == len(self.quotas)


class PolicyServer(Reading):
    """What one server holds under the policy, its members summed, as measured."""

    name: str = Field(min_length=1, max_length=253, description="The InferenceServer.")
    dram_bytes: int = Field(0, ge=0, le=LARGEST_INTEGER, description="Bytes of blocks in host memory.")
    disk_bytes: int = Field(0, ge=0, le=LARGEST_INTEGER, description="Bytes of blocks on disk.")
    pinned_bytes: int = Field(0, ge=0, le=LARGEST_INTEGER, description="Bytes that contexts pin.")
    hit_rate: Percent | None = Field(None, description="The share of prompt tokens found in a tier, in the last hour.")
    evictions: int = Field(0, ge=0, le=LARGEST_INTEGER, description="Blocks evicted since the server started.")
    degraded: bool = Field(False, description="Whether a tier is off because it failed.")


class PolicyStatus(Reading):
    """What was observed of the servers that follow the policy."""

    observed_generation: int = Field(
        0, ge=0, le=LARGEST_INTEGER, description="The metadata.generation that this status speaks of."
    )
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=32,
        description="Ready, Reconciling, Stalled, DiskTierDegraded, OverCapacity, PinBudgetExhausted.",
        json_schema_extra=list_map("type"),
    )
    pinned: str = Field("", max_length=32, description="Bytes that contexts pin in all servers, such as 3Gi.")
    hit_rate: Percent | None = Field(None, description="The share of prompt tokens found in a tier, all servers.")
    servers: tuple[PolicyServer, ...] = Field(
        (), max_length=256, description="The servers that follow the policy.", json_schema_extra=list_map("name")
    )


class KVCachePolicy(Resource):
    """How much host memory and disk the KV cache may use, how long contexts are kept, and what is evicted first."""

    api_version: Literal["ebbtide.dev/v1alpha1"] = Field(API_VERSION, description="The version of the schema.")
    kind: Literal["KVCachePolicy"] = Field("KVCachePolicy", description="The kind of the object.")
    spec: PolicySpec = Field(description="The policy that is wanted.")
    status: PolicyStatus | None = Field(None, description="What was observed of the servers that follow the policy.")
