"""The lease of one group, for whoever calls: taken on demand, renewed by a thread, given back at the end."""

from __future__ import annotations

import threading
import time
from typing import TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Lease, LeaseRequest, LeaseStage

from ..client.borrowing import FAREWELL, Terms, hoped_for
from ..client.connection import Connection
from ..client.flow import Flow
from ..client.gateway import Call, Gateway, lease_path, new_key
from ..client.keeper import ENDED, Keeper
from ..client.runners import Runner

T = TypeVar("T")
_OVER = ENDED | {LeaseStage.RETURNING}


class Holder:
    """Callers in many threads; one of them takes the lease, and the others wait for it."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self.gateway, self.terms = Gateway(connection.url), terms
        self._connection, self._runner = connection, Runner(connection)
        self._lock = threading.RLock()
        self._lease: Lease | None = None
        self._keeper: Keeper | None = None
        self._lost: EbbtideError | None = None
        self._closing = threading.Event()

    def run(self, flow: Flow[T]) -> T:
        """Carry a flow of the client out."""
        return self._runner.run(flow)

    @property
    def held(self) -> bool:
        """Whether there is a lease, as far as we know."""
        return self._lease is not None

    def epoch(self) -> int:
        """Return the epoch of the lease, which is taken if there is none. May wait for the group's turn.

        Raises STALE_EPOCH once when the lease was lost: what ran with the memory must hear of it.
        """
        with self._lock:
            if self._closing.is_set():
                raise EbbtideError(ErrorCode.UNREACHABLE, "the proxy is ending and takes no lease any more.")
            if lost := self._lost:
                self.forget()
                raise lost
            if self._lease is not None and self._is_over(self._lease):
                self.forget()
            return (self._lease or self._take(self.terms.request())).epoch

    def current(self) -> Lease | None:
        """Return the lease as the gateway has it now, without taking one; None when there is none any more.

        Raises STALE_EPOCH once when it was lost.
        """
        with self._lock:
            if lost := self._lost:
                self.forget()
                raise lost
            now = self._read(self._lease) if self._lease else None
            if self._lease is not None and (now is None or now.stage in ENDED):
                self.forget()
                return None
            return now

    def _is_over(self, lease: Lease) -> bool:
        now = self._read(lease)
        return now is None or now.stage in _OVER

    def _read(self, lease: Lease) -> Lease | None:
        answer = self.run(self.gateway.answer(Call("GET", lease_path(lease))))
        if answer.status in {404, 410, 412}:
            return None
        return self.gateway.parse(answer, Lease.model_validate, "the lease")

    def _take(self, request: LeaseRequest) -> Lease:
        key, began = new_key(), time.monotonic()
        # Known before it is asked for: if the answer is lost, the place in the queue can still be given up.
        self._lease = hoped_for(self.terms, key)
        try:
            self._lease = lease = self.run(self.gateway.ask(self.terms.group, request, key))
            self._keeper = Keeper(self._connection, lease, self._on_lost)
            while lease.stage is LeaseStage.QUEUED:
                self._check_patience(lease, time.monotonic() - began)
                self._lease = lease = self.run(self.gateway.lease(lease))
        except BaseException:
            self.give_back()
            raise
        return lease

    def _check_patience(self, lease: Lease, waited: float) -> None:
        if self._closing.is_set():
            raise EbbtideError(ErrorCode.UNREACHABLE, "the proxy is ending, and left the queue.")
        if waited > self.terms.patience:
            message = f"group {lease.group} was not free within {waited:.0f} s; {lease.position} are still before us."
            raise EbbtideError(ErrorCode.PHASE_DEADLINE, message, next_action="Wait longer (--patience), or ask later.")

    def _on_lost(self, lost: EbbtideError) -> None:
        # In the keeper's thread. A lease that ended because its holder gave the memory back is not lost.
        if lost.details.get("stage") not in {LeaseStage.RELEASED, LeaseStage.CANCELLED}:
            self._lost = lost

    def forget(self) -> None:
        """Renew no more: the lease has ended."""
        with self._lock:
            keeper, self._keeper, self._lease, self._lost = self._keeper, None, None, None
            if keeper is not None:
                keeper.stop()

    def give_back(self) -> None:
        """Give the lease back, if there is one; the gateway wakes what sleeps. Raises nothing: the TTL ends it too."""
        with self._lock:
            lease = self._lease
            self.forget()
            if lease is not None:
                try:
                    self.run(self.gateway.release(lease, patience=FAREWELL))
                except EbbtideError:
                    return

    def close(self) -> None:
        """Give the lease back and take no other. A caller that waits for its turn is sent away."""
        self._closing.set()
        self.give_back()
        self._runner.close()
