"""A group of engines that share devices, as a trainer sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import StateVector
from ebbtide_api.verbs import Canary, Drain, GroupState, Lease, ServerState

from ..progress import OnProgress, silent
from ..weights import Published
from .borrowing import Borrowing, Stop, Terms
from .connection import Connection, find
from .flow import Flow
from .gateway import Gateway
from .keeper import Keeper, OnLost
from .loan import AsyncLoan, Loan
from .runners import AsyncRunner, Runner

LENT = "EBBTIDE_LENT"
"""The group that `ebbtide lend` borrowed for the command that it runs."""


@dataclass(frozen=True)
class Server:
    """A server of the group: where its replicas take requests, and which weights they serve."""

    name: str
    model: str
    urls: tuple[str, ...]
    serving: bool
    weight_version: int
    members: tuple[StateVector, ...] = ()

    @property
    def url(self) -> str:
        """The base URL of the first replica, without `/v1`."""
        return self.urls[0]


L = TypeVar("L", Loan, AsyncLoan)


class _GroupBase(Generic[L]):
    """What both groups share. `holder` names the trainer to people; `pid` roots the processes whose memory is its."""

    def __init__(
        self, name: str, *, connection: Connection | None = None, holder: str = "", pid: int | None = None
    ) -> None:
        self.name = name
        self.connection = connection or find()
        self._gateway = Gateway(self.connection.url)
        # Elsewhere our pid means nothing, or another process.
        self._pid = os.getpid() if pid is None and self.connection.local else pid
        self._holder = holder

    def borrow(
        self,
        *,
        ttl: float = 30.0,
        need_mib: float | None = None,
        drain: Drain | None = None,
        level: int = 0,
        patience: float = 3600.0,
        timeout: float = 300.0,
        canary: Canary | None = None,
        on_progress: OnProgress = silent,
        on_lost: OnLost | None = None,
    ) -> L:
        """Return a loan, to be used with `with` or `async with`. Times are in seconds.

        ttl        how long the engines wait for a trainer that died; a thread renews the lease three times in it
        need_mib   what must be free per device; absent = all that the engines can free
        drain      what happens to requests in flight; absent = as each server says
        level      1 keeps a parked copy of the weights, 2 discards them, 0 lets Ebbtide choose
        patience   how long to wait in the group's queue
        timeout    how long lending, and later giving back, may take
        canary     a request with known tokens that must pass before the engines serve
        on_lost    called from another thread when somebody else owns the group

        Entering raises DRAIN_DEADLINE, RELEASE_INCOMPLETE, HOST_MEMORY_INSUFFICIENT, PHASE_DEADLINE, UNREACHABLE;
        leaving raises MANIFEST_INVALID, VERSION_REGRESSION, DEVICE_NOT_FREE, CANARY_FAILED, STALE_EPOCH.
        """
        terms = Terms(
            *(self.name, self._holder, self._pid),
            ttl=ttl,
            need_mib=need_mib,
            drain=drain,
            level=level,
            patience=patience,
            timeout=timeout,
            canary=canary,
            on_progress=on_progress,
            on_lost=on_lost,
        )
        return self._loan(self._borrowing(terms))

    def _borrowing(self, terms: Terms) -> Borrowing:
        # To wait for `ebbtide lend` to give back what it borrowed for us would last until one of us gives up.
        if os.environ.get(LENT) == self.name:
            message = f"group {self.name} is borrowed already: by the `ebbtide lend` that started this process."
            action = "Start the program without `ebbtide lend`: it borrows by itself."
            raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=action, group=self.name)
        return Borrowing(self._gateway, terms, self._keep, self._alone)

    def _loan(self, core: Borrowing) -> L:
        raise NotImplementedError

    def _keep(self, lease: Lease, on_lost: OnLost) -> Stop:
        return Keeper(self.connection, lease, on_lost).stop

    def _alone(self, flow: Flow[Published]) -> Published:
        runner = Runner(self.connection)
        try:
            return runner.run(flow)
        finally:
            runner.close()

    def _servers(self) -> Flow[list[Server]]:
        states = yield from self._gateway.servers()
        return [_server(state) for state in states if state.group == self.name]


def _server(state: ServerState) -> Server:
    return Server(
        name=state.name,
        model=state.model,
        urls=tuple(member.url for member in state.members if member.url),
        serving=state.serving,
        weight_version=max((member.committed_version for member in state.members), default=0),
        members=tuple(state.members),
    )


class Group(_GroupBase[Loan]):
    """A group, blocking. The gateway is found by EBBTIDE_URL and EBBTIDE_TOKEN, or by what `ebbtide up` wrote."""

    def __init__(
        self, name: str, *, connection: Connection | None = None, holder: str = "", pid: int | None = None
    ) -> None:
        super().__init__(name, connection=connection, holder=holder, pid=pid)
        self._runner = Runner(self.connection)

    def _loan(self, core: Borrowing) -> Loan:
        return Loan(core, self._runner)

    def servers(self) -> list[Server]:
        """Return the group's servers: their URLs for requests, and the versions that they serve."""
        return self._runner.run(self._servers())

    def state(self) -> GroupState:
        """Return who owns the group's devices, and who waits for them."""
        return self._runner.run(self._gateway.group(self.name))

    def close(self) -> None:
        """Close the connections. Loans that are held stay held."""
        self._runner.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncGroup(_GroupBase[AsyncLoan]):
    """A group, asynchronous. The lease is still renewed by a thread: a blocked event loop must not lose it."""

    def __init__(
        self, name: str, *, connection: Connection | None = None, holder: str = "", pid: int | None = None
    ) -> None:
        super().__init__(name, connection=connection, holder=holder, pid=pid)
        self._runner = AsyncRunner(self.connection)

    def _loan(self, core: Borrowing) -> AsyncLoan:
        return AsyncLoan(core, self._runner)

    async def servers(self) -> list[Server]:
        """Return the group's servers. As `Group.servers`."""
        return await self._runner.run(self._servers())

    async def state(self) -> GroupState:
        """Return the group's state. As `Group.state`."""
        return await self._runner.run(self._gateway.group(self.name))

    async def close(self) -> None:
        """Close the connections. Loans that are held stay held."""
        await self._runner.close()

    async def __aenter__(self) -> AsyncGroup:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
