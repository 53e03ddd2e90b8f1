"""What the operator observed of an InferenceServer. Memory is in MiB, as measured."""

from __future__ import annotations

from pydantic import Field

from .base import LARGEST_INTEGER, Reading
from .conditions import Condition
from .errors import ErrorCode
from .spec import list_map
from .state import KV, Phase, Weights


class MemberDevice(Reading):
    """One device of a member."""

    id: str = Field(max_length=253, description="The device: cpu0, or the GPU's UUID.")
    used_mib: int = Field(ge=0, le=LARGEST_INTEGER, description="MiB that the member uses on it.")
    free_mib: int = Field(ge=0, le=LARGEST_INTEGER, description="MiB that nobody uses on it.")


class MemberError(Reading):
    """Why a member's last operation failed."""

    code: ErrorCode = Field(description="The error's stable name, as in docs/errors.md.")
    message: str = Field("", max_length=4096, description="What happened, in a sentence.")


class MemberStatus(Reading):
    """One replica."""

    name: str = Field(min_length=1, max_length=253, description="The member: the server's name and an ordinal.")
    uid: str = Field("", max_length=128, description="Which one of that name: the pod's UID.")
    phase: Phase = Field(Phase.UNKNOWN, description="Where the member is in its lifecycle.")
    weights: Weights = Field(Weights.UNKNOWN, description="Where its weights are.")
    kv: KV = Field(KV.UNKNOWN, description="Whether its KV cache has memory.")
    weight_version: int = Field(
        0, ge=0, le=LARGEST_INTEGER, description="The version of its weights; 0 is model.source."
    )
    device: tuple[MemberDevice, ...] = Field(
        (), max_length=64, description="Its devices, as measured.", json_schema_extra=list_map("id")
    )
    since: str = Field("", max_length=40, description="When the phase began, RFC 3339 in UTC.")
    last_error: MemberError | None = Field(None, description="Why its last operation failed, if it did.")


class ServerStatus(Reading):
    """What was observed of the server."""

    observed_generation: int = Field(
        0, ge=0, le=LARGEST_INTEGER, description="The metadata.generation that this status speaks of."
    )
    conditions: tuple[Condition, ...] = Field(
        (),
        max_length=32,
        description="Ready (as you asked: serving, or asleep), Reconciling, Stalled, Serving, MemoryReleased, Paired,"
        " CacheTiersReady.",
        json_schema_extra=list_map("type"),
    )
    replicas: int = Field(0, ge=0, le=2**31 - 1, description="Members that exist.")
    awake_replicas: int = Field(0, ge=0, le=2**31 - 1, description="Members that are awake.")
    selector: str = Field(
        "", max_length=4096, description="The label selector of the awake members' pods, for scaling."
    )
    weight_version: int = Field(0, ge=0, le=LARGEST_INTEGER, description="The version that serves; 0 is model.source.")
    owner: str = Field("", max_length=253, description="Who may use the devices: engine, or the lease's holder.")
    epoch: int = Field(
        0, ge=0, le=LARGEST_INTEGER, description="The lease's fencing token; it grows with every change of owner."
    )
    phase: str = Field("", max_length=63, description="The state in a word, for people; programs read conditions.")
    members: tuple[MemberStatus, ...] = Field(
        (), max_length=256, description="The replicas, one by one.", json_schema_extra=list_map("name")
    )
