"""The verbs of the agent and of the gateway: what is asked, and what is answered (DESIGN 5.3)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from .base import LARGEST_INTEGER, Message, Reading
from .errors import ErrorBody
from .state import Phase, PhaseTiming, StateVector

IDEMPOTENCY_KEY = "Idempotency-Key"
EPOCH = "Ebbtide-Epoch"
LEADER = "Ebbtide-Leader"
DEADLINE = "Ebbtide-Deadline"
INSTANCE = "Ebbtide-Instance"
SECRET = "Ebbtide-Secret"  # noqa: S105 - a header's name


class Verb(StrEnum):
    """What a member can be asked to do, one path segment each."""

    GRANT = "grant"
    SLEEP = "sleep"
    WAKE_WEIGHTS = "wake-weights"
    BEGIN_UPDATE = "begin-update"
    COMMIT_UPDATE = "commit-update"
    ABORT_UPDATE = "abort-update"
    RELOAD = "reload"
    WAKE_KV = "wake-kv"
    RESUME = "resume"
    PAUSE = "pause"
    RELEASE_KV = "release-kv"
    RECONCILE = "reconcile"


class DrainMode(StrEnum):
    """What happens to requests in flight: finish them, end them with partial tokens, or freeze them."""

    WAIT = "Wait"
    ABORT = "Abort"
    KEEP = "Keep"


class OnDeadline(StrEnum):
    """What a drain does at its deadline: abort what remains, or give up and serve on."""

    ABORT = "Abort"
    FAIL = "Fail"


class Drain(Message):
    """How to empty a member before it sleeps. `timeout` is in seconds."""

    mode: DrainMode = DrainMode.WAIT
    timeout: float = Field(30.0, gt=0, le=86400)
    on_deadline: OnDeadline = OnDeadline.ABORT


class SleepRequest(Message):
    """Put a member to sleep. `level` 0 lets the policy choose; `needMib` is what must be free per device.

    With `wakes`, a request that finds the gate closed is news for the operator, and is held for `hold` seconds.
    """

    level: int = Field(0, ge=0, le=2)
    drain: Drain = Drain()
    need_mib: float | None = Field(None, ge=0)
    settle: float = Field(0.2, ge=0, le=60)
    wakes: bool = False
    hold: float = Field(0, ge=0, le=3600)


class WeightsSource(Message):
    """Where published weights lie: a folder with `manifest.json` and the files it names.

    A relative path is one in the member's own memory, where streamed weights are received.
    """

    path: str


class BeginUpdateRequest(Message):
    """Check a published version whole, then load it. Nothing of the engine is touched before the check passed."""

    version: int = Field(ge=1, le=LARGEST_INTEGER)
    source: WeightsSource


class CommitUpdateRequest(Message):
    """Make the loaded version the member's version; its caches are reset."""

    version: int = Field(ge=1, le=LARGEST_INTEGER)


class Canary(Message):
    """A greedy request that proves the engine answers. `expect` are token ids; absent = only compare with the last."""

    prompt: str = "ebb and flow"
    tokens: int = Field(4, ge=1, le=256)
    expect: list[int] | None = None


class ResumeRequest(Message):
    """Verify with a canary, then open admission."""

    canary: Canary = Canary()


class PauseRequest(Message):
    """Close admission without releasing memory."""

    mode: DrainMode = DrainMode.WAIT
    timeout: float = Field(30.0, gt=0, le=86400)


class GrantRequest(Message):
    """Tell a member that its engine owns the device and may start. `boot` is the launch it is for."""

    boot: int = Field(ge=1)


class Nothing(Message):
    """An empty body."""


class OperationStatus(StrEnum):
    """Whether an operation still runs, and how it ended."""

    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"


class Operation(Reading):
    """One call, from its acceptance to its answer. `result` is the verb's result as JSON."""

    id: str
    verb: str
    target: str
    status: OperationStatus
    noop: bool = False
    phase: Phase | None = None
    progress: str = ""
    phases: list[PhaseTiming] = Field(default_factory=list)
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None
    started_at: str = ""
    ended_at: str = ""


class DeviceRelease(Reading):
    """What a sleep released on one device, measured. `free_mib` is absent where nobody knows how large that is."""

    id: str
    freed_mib: float
    residual_mib: float
    free_mib: float | None = None


class SleepResult(Reading):
    """A measured sleep."""

    level: int
    devices: list[DeviceRelease]
    aborted_requests: int = 0
    drained_ms: float = 0
    suspend_ms: float = 0
    copied_bytes: int = 0


class CanaryResult(Reading):
    """What the canary answered, and whether it was as expected."""

    ok: bool
    tokens: list[int]
    expected: list[int] | None = None
    text: str = ""


class ResumeResult(Reading):
    """The version that serves, and its canary."""

    weight_version: int
    cache_epoch: int
    canary: CanaryResult | None = None


# The gateway


class LeaseStage(StrEnum):
    """How far a lease has come. `Queued` waits its turn; `Lent` means memory was measured free."""

    QUEUED = "Queued"
    GRANTED = "Granted"
    LENDING = "Lending"
    LENT = "Lent"
    RETURNING = "Returning"
    OWNER_LOST = "OwnerLost"
    RELEASED = "Released"
    CANCELLED = "Cancelled"


class LeaseRequest(Message):
    """Ask for a group. `pid` (local mode) is the trainer's root process, whose memory is counted as the trainer's."""

    holder: str = Field(min_length=1, max_length=253)
    ttl_seconds: float = Field(30.0, gt=0, le=86400)
    pid: int | None = Field(None, ge=1)
    need_mib: float | None = Field(None, ge=0)


class Lease(Reading):
    """A place in a group's queue, or the group itself.

    `handoff` is where members look for published weights; with `streams` they are sent to the gateway, which puts
    them there; without, the trainer writes into that folder.
    """

    id: str
    group: str
    holder: str
    epoch: int
    stage: LeaseStage
    position: int = 0
    ttl_seconds: float
    expires_in: float | None = None
    handoff: str = ""
    streams: bool = False


class LendRequest(Message):
    """Put every server of the group to sleep, measured. Absent drain = each server's own."""

    drain: Drain | None = None
    level: int = Field(0, ge=0, le=2)


class MemberRelease(Reading):
    """One member's part of a lend."""

    member: str
    result: SleepResult


class LendResult(Reading):
    """All servers asleep and measured. `devices` sums the members of each device."""

    epoch: int
    devices: list[DeviceRelease]
    members: list[MemberRelease]
    aborted_requests: int = 0
    phases: list[PhaseTiming] = Field(default_factory=list)


class ReclaimRequest(Message):
    """The whole way back. Without `version` the old weights serve again."""

    version: int | None = Field(None, ge=1, le=LARGEST_INTEGER)
    source: WeightsSource | None = None
    canary: Canary | None = None


class MemberReturn(Reading):
    """One member's part of a reclaim."""

    member: str
    result: ResumeResult


class ReclaimResult(Reading):
    """All servers serve again."""

    epoch: int
    weight_version: int
    members: list[MemberReturn]
    phases: list[PhaseTiming] = Field(default_factory=list)


class ServerState(Reading):
    """A server and its members."""

    name: str
    group: str
    model: str
    replicas: int
    ready: bool
    serving: bool
    reason: str = ""
    message: str = ""
    members: list[StateVector] = Field(default_factory=list)


class Obstacle(Reading):
    """Something that is in a server's way. `since` is when this operator first saw it, RFC 3339 in UTC."""

    subject: str
    reason: str
    message: str
    next_action: str
    since: str


class MemberAim(Reading):
    """What a member is to do, its phase and when that began, and its next step. No phase: its agent does not answer."""

    name: str
    wants: str
    next: str
    next_action: str = ""
    phase: Phase | None = None
    since: str = ""


class ServerWhy(Reading):
    """Why a server is as it is. `settled`: as asked, and `wants` says how; else what is wanted and what is in the way.

    Without obstacles an unsettled server is on its way, and needs nobody.
    """

    name: str
    group: str
    settled: bool
    wants: str
    since: str = ""
    obstacles: list[Obstacle] = Field(default_factory=list)
    members: list[MemberAim] = Field(default_factory=list)


class Ownership(Reading):
    """From `at` on, a group was `owner`'s, at an epoch; `stage` and `holder` are those of its lease, if it had one."""

    at: str
    owner: str
    epoch: int
    stage: LeaseStage | None = None
    holder: str = ""


class Sighting(Reading):
    """From `at` on, a member was seen in a phase. `NoAnswer`: its agent did not answer; `Gone`: it was ended."""

    at: str
    member: str
    phase: str
    version: int = 0


class Timeline(Reading):
    """What was observed of a group until `now`, oldest first, by one operator: a restarted one begins anew.

    Of what is older than the first entry of a member, nothing is known.
    """

    group: str
    now: str
    ownership: list[Ownership] = Field(default_factory=list)
    members: list[Sighting] = Field(default_factory=list)


class GroupState(Reading):
    """A group: who owns its devices, and who waits."""

    name: str
    owner: str
    epoch: int
    servers: list[str]
    lease: Lease | None = None
    queue: list[Lease] = Field(default_factory=list)
    devices: list[dict[str, Any]] = Field(default_factory=list)
