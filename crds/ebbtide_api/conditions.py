"""Conditions by KEP-1623, with the three that kstatus, Flux and `kubectl wait` understand."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import Field

from .base import LARGEST_INTEGER, Reading


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """What is said of a server. `Ready` means as you asked: serving, or asleep."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SERVING = "Serving"
    MEMORY_RELEASED = "MemoryReleased"
    PAIRED = "Paired"
    CACHE_TIERS_READY = "CacheTiersReady"


class Condition(Reading):
    """One observation about an object."""

    type: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9._/-]*[A-Za-z0-9])?$",
        min_length=1,
        max_length=316,
        description="What is observed, in CamelCase: Ready, Reconciling, Stalled, Serving, ...",
    )
    status: ConditionStatus = Field(description="Whether it holds: True, False or Unknown.")
    observed_generation: int = Field(
        0, ge=0, le=LARGEST_INTEGER, description="The metadata.generation that this was observed for."
    )
    last_transition_time: str = Field(
        max_length=40,
        json_schema_extra={"format": "date-time"},
        description="When status last changed, RFC 3339 in UTC.",
    )
    reason: str = Field(
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        min_length=1,
        max_length=1024,
        description="Why, as one CamelCase word for programs.",
    )
    message: str = Field(max_length=32768, description="Why, as a sentence for people, with the next step.")


def merge(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return `new` over `old`, by type. A condition whose status is unchanged keeps its transition time."""
    merged = {condition.type: condition for condition in old}
    for condition in new:
        before = merged.get(condition.type)
        if before and before.status == condition.status:
            condition = condition.model_copy(update={"last_transition_time": before.last_transition_time})
        merged[condition.type] = condition
    return tuple(merged.values())
