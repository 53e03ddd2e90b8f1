"""The part of an InferenceServer's spec that says how it sleeps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .member import Parking
from .quantity import Duration
from .spec import Between, Spec, rule
from .verbs import Drain, DrainMode, OnDeadline


class SleepLevel(StrEnum):
    """How deep to sleep. Engines know them as level 1 (`Parked`) and 2 (`Discarded`)."""

    AUTO = "Auto"
    PARKED = "Parked"
    DISCARDED = "Discarded"

    @property
    def number(self) -> int:
        """The level as the verbs carry it: 0 lets the policy choose."""
        return list(SleepLevel).index(self)


class SleepDrainMode(StrEnum):
    """What happens to requests in flight when a server goes to sleep."""

    WAIT = "Wait"
    ABORT = "Abort"


class DrainSpec(Spec):
    """How requests in flight are ended before the memory is released."""

    mode: SleepDrainMode = Field(
        SleepDrainMode.WAIT,
        description="Wait lets requests finish until the timeout; Abort ends them at once with their partial tokens.",
    )
    timeout: Annotated[Duration, Between(Duration("1ms"), Duration("24h"))] = Field(
        Duration("30s"), description="How long Wait waits."
    )
    on_deadline: OnDeadline = Field(
        OnDeadline.ABORT,
        description="After the timeout: Abort ends what remains with its partial tokens;"
        " Fail serves on, and the sleep fails with what remained.",
    )

    @property
    def request(self) -> Drain:
        """The drain as the verbs carry it."""
        return Drain(mode=DrainMode(self.mode), timeout=self.timeout.seconds, on_deadline=self.on_deadline)


class Idle(Spec):
    """Sleep of a server that nobody asks."""

    after: Annotated[Duration, Between(Duration("1s"), Duration("8760h"))] = Field(
        description="Sleep when the last request ended this long ago."
    )
    deeper_after: Annotated[Duration, Between(Duration("1s"), Duration("8760h"))] | None = Field(
        None,
        description="Discard the parked weights too when the last request ended this long ago. Absent means never.",
    )

    @rule(
        "!has(self.deeperAfter) || duration(self.deeperAfter) >= duration(self.after)",
        "deeperAfter is not before `after`",
        field="deeperAfter",
    )
    def _deeper_is_later(self) -> bool:
        return self.deeper_after is None or self.deeper_after.value >= self.after.value


class Sleep(Spec):
    """How the server sleeps, when a lease, `power` or idleness asks for it."""

    level: SleepLevel = Field(
        SleepLevel.AUTO,
        description="What becomes of the weights. Parked (level 1) keeps a checked copy in host memory to wake from."
        " Discarded (level 2) keeps none: waking reloads them. Auto parks if host memory allows, else discards.",
    )
    parking: Parking = Field(
        Parking.EAGER,
        description="When the parked copy is made: Eager, while serving, so that sleeping copies nothing;"
        " OnSleep, at the first sleep; or Never.",
    )
    settle: Annotated[Duration, Between(Duration("0s"), Duration("60s"))] = Field(
        Duration("200ms"),
        description="The time between the two measurements that must both find the memory free.",
    )
    wake_on_request: bool = Field(
        True,
        description="Whether a request wakes a server that fell asleep by idleness."
        " A lent server, and one with power Asleep, never wakes by a request.",
    )
    hold_for: Annotated[Duration, Between(Duration("0s"), Duration("1h"))] = Field(
        Duration("0s"),
        description="How long a request that wakes the server waits for it, to be served then."
        " 0s answers at once, with 503 and Retry-After; so does the end of this time.",
    )
    drain: DrainSpec = Field(DrainSpec(), description="How requests in flight are ended first.")
    idle: Idle | None = Field(None, description="When an idle server sleeps by itself. Absent means never.")

    @rule(
        "self.wakeOnRequest || duration(self.holdFor) == duration('0s')",
        "a request is held for a wake only: set wakeOnRequest, or leave holdFor at 0s",
        field="holdFor",
    )
    def _held_requests_wake(self) -> bool:
        return self.wake_on_request or not self.hold_for.value

    @rule(
        "self.level != 'Parked' || self.parking != 'Never'",
        "level Parked needs a parked copy: use parking Eager or OnSleep",
        field="parking",
    )
    def _parked_needs_parking(self) -> bool:
        return self.level is not SleepLevel.PARKED or self.parking is not Parking.OFF
