"""Borrow the memory of inference engines for training, and give it back with new weights.

from ebbtide import Group

group = Group("actor")
with group.borrow() as loan:                        # the engines sleep, their memory is measured free
    train_step(model)
    loan.publish(model.state_dict(), version=step)
# leaving gives back: weights in, KV cache in, canary, open. After an exception the old weights serve again.
"""

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Canary, Drain, DrainMode, LendResult, OnDeadline, ReclaimResult

from .client import AsyncGroup, AsyncLoan, Connection, Group, Loan, Server
from .progress import Progress, Stage
from .weights import Published

__version__ = "0.1.0"

__all__ = [
    "AsyncGroup",
    "AsyncLoan",
    "Canary",
    "Connection",
    "Drain",
    "DrainMode",
    "EbbtideError",
    "ErrorCode",
    "Group",
    "LendResult",
    "Loan",
    "OnDeadline",
    "Progress",
    "Published",
    "ReclaimResult",
    "Server",
    "Stage",
]
