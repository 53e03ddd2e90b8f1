"""The planner: pure. It imports the messages and the standard library, has no I/O, no clock and no memory."""

from .actions import Action, Call, EndMember, EnsureMember, Finish, Plan, Progress, Retire, Save
from .explanation import Explanation, Obstacle
from .finding import Finding
from .plan import plan
from .record import ENGINE, GroupRecord, LeaseRecord, LendIntent, PodRef, ReturnIntent, Serve
from .world import Idle, MemberView, Outcome, ServerView, TrainerView, Turns, World

__all__ = [
    "ENGINE",
    "Action",
    "Call",
    "EndMember",
    "EnsureMember",
    "Explanation",
    "Finding",
    "Finish",
    "GroupRecord",
    "Idle",
    "LeaseRecord",
    "LendIntent",
    "MemberView",
    "Obstacle",
    "Outcome",
    "Plan",
    "PodRef",
    "Progress",
    "Retire",
    "ReturnIntent",
    "Save",
    "Serve",
    "ServerView",
    "TrainerView",
    "Turns",
    "World",
    "plan",
]
