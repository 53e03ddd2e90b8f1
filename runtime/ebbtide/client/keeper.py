"""Renews a lease from its own thread, so that neither a long training step nor a blocked event loop can lose it.

If the gateway cannot be reached, renewing goes on: leases outlive a restart of the gateway, which gives each a fresh
TTL. Only the gateway's own word ends a lease. A dead process renews nothing, and the TTL does the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Lease, LeaseStage

from .connection import Connection
from .flow import Answer, Clock, Flow, Pause, Reply, Send, send
from .gateway import Gateway, lease_path
from .runners import Runner

log = logging.getLogger("ebbtide")

ENDED = frozenset({LeaseStage.RELEASED, LeaseStage.CANCELLED, LeaseStage.OWNER_LOST})
REFUSED = frozenset({401, 403, 404, 410, 412})
OnLost = Callable[[EbbtideError], None]


def keep(gateway: Gateway, lease: Lease, clock: Clock = time.monotonic) -> Flow[EbbtideError]:
    """Renew three times in each TTL, and return why the lease was lost once it is."""
    rhythm = lease.ttl_seconds / 3
    heard = clock()
    while True:
        yield Pause(rhythm)
        asked = clock()
        answer = yield from send(_renewal(lease, min(rhythm, 5.0)))
        if lost := _loss(gateway, lease, answer):
            return lost
        if isinstance(answer, Reply) and answer.ok:
            heard = asked
        elif clock() - heard > lease.ttl_seconds:
            log.warning("the lease of group %s was not renewed for %.0f s: %s", lease.group, clock() - heard, answer)


def _renewal(lease: Lease, timeout: float) -> Send:
    # Without the epoch: the thread starts in the queue, where the lease has none yet, and its id says enough.
    return Send("PUT", lease_path(lease), timeout, {"ttlSeconds": lease.ttl_seconds})


def _loss(gateway: Gateway, lease: Lease, answer: Answer) -> EbbtideError | None:
    if not isinstance(answer, Reply):
        return None
    if answer.status in REFUSED:
        return gateway.error_in(answer, "the renewal")
    if not answer.ok:
        return None
    now = gateway.parse(answer, Lease.model_validate, "the renewal")
    if now.stage not in ENDED:
        return None
    message = f"the lease of group {lease.group} is {now.stage}: another owner may use its devices."
    return EbbtideError(ErrorCode.STALE_EPOCH, message, group=lease.group, stage=now.stage.value)


class Keeper:
    """The thread that renews one lease. `on_lost` is called in it, once."""

    def __init__(self, connection: Connection, lease: Lease, on_lost: OnLost) -> None:
        self._stopped = threading.Event()
        self._on_lost = on_lost
        self._runner = Runner(connection, self._sleep)
        flow = keep(Gateway(connection.url), lease)
        self._thread = threading.Thread(target=self._renew, args=(flow,), name=f"ebbtide-{lease.group}", daemon=True)
        self._thread.start()

    def _renew(self, flow: Flow[EbbtideError]) -> None:
        try:
            lost = self._runner.run(flow)
            if not self._stopped.is_set():
                self._on_lost(lost)
        except _StoppedError:
            pass
        except EbbtideError as strange:
            self._on_lost(strange)
        finally:
            self._runner.close()

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise _StoppedError

    def stop(self) -> None:
        """Renew no more. Does not wait for a request under way for longer than a second."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=1)


class _StoppedError(Exception):
    """The keeper was told to stop."""
