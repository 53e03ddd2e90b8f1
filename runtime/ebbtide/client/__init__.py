"""The client for trainers: borrow a group's memory, publish weights, give back.

group      Group, AsyncGroup: what a trainer holds
loan       Loan, AsyncLoan: lent memory, inside a with block
borrowing  the whole way there and back, as flows
gateway    the gateway's calls, as flows: retries, deadlines, errors
keeper     renews a lease from a thread
flow       what a flow is; runners carry one out
connection where the gateway is
"""

from .connection import Connection, find
from .group import AsyncGroup, Group, Server
from .loan import AsyncLoan, Loan

__all__ = ["AsyncGroup", "AsyncLoan", "Connection", "Group", "Loan", "Server", "find"]
