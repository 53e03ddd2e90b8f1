"""A condition as plan() finds it: without times, which are the business of whoever remembers the last one."""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide_api.conditions import ConditionStatus, ConditionType


@dataclass(frozen=True)
class Finding:
    """One condition: why, in a word for programs, and in a sentence with the next step for people."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str
