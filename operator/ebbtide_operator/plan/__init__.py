"""The planner: pure. It imports the messages and the standard library, has no I/O, no clock and no memory."""

from .actions import Action, Call, EndMember, EnsureMember, Finish, Plan, Progress, Retire, Save
from .finding import Finding
from .plan import plan
from .record import ENGINE, GroupRecord, LeaseRecord, LendIntent, ReturnIntent, Serve
from .world import MemberView, Outcome, ServerView, TrainerView, World

__all__ = [
    "ENGINE",
    "Action",
    "Call",
    "EndMember",
    "EnsureMember",
    "Finding",
    "Finish",
    "GroupRecord",
    "LeaseRecord",
    "LendIntent",
    "MemberView",
    "Outcome",
    "Plan",
    "Progress",
    "Retire",
    "ReturnIntent",
    "Save",
    "Serve",
    "ServerView",
    "TrainerView",
    "World",
    "plan",
]
