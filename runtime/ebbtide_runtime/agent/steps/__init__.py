"""The verbs of a member, each a short sequence over the engine's client, the probe and the table."""

from typing import Any

from ebbtide_api.base import Message
from ebbtide_api.verbs import (
    BeginUpdateRequest,
    CommitUpdateRequest,
    GrantRequest,
    Nothing,
    PauseRequest,
    ResumeRequest,
    SleepRequest,
    Verb,
)

from ..action import Action
from .resume import Resume
from .simple import Grant, Pause, Reconcile
from .sleep import ReleaseKV, Sleep
from .update import AbortUpdate, BeginUpdate, CommitUpdate, Reload
from .wake import WakeKV, WakeWeights

ACTIONS: dict[Verb, type[Action[Any]]] = {
    Verb.GRANT: Grant,
    Verb.SLEEP: Sleep,
    Verb.WAKE_WEIGHTS: WakeWeights,
    Verb.BEGIN_UPDATE: BeginUpdate,
    Verb.COMMIT_UPDATE: CommitUpdate,
    Verb.ABORT_UPDATE: AbortUpdate,
    Verb.RELOAD: Reload,
    Verb.WAKE_KV: WakeKV,
    Verb.RESUME: Resume,
    Verb.PAUSE: Pause,
    Verb.RELEASE_KV: ReleaseKV,
    Verb.RECONCILE: Reconcile,
}
BODIES: dict[Verb, type[Message]] = {
    **dict.fromkeys(Verb, Nothing),
    Verb.GRANT: GrantRequest,
    Verb.SLEEP: SleepRequest,
    Verb.BEGIN_UPDATE: BeginUpdateRequest,
    Verb.COMMIT_UPDATE: CommitUpdateRequest,
    Verb.RESUME: ResumeRequest,
    Verb.PAUSE: PauseRequest,
}

__all__ = ["ACTIONS", "BODIES"]
