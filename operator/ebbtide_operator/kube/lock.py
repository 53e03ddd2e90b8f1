"""One operator at a time: its own Lease. Its `leaseTransitions` is the leader's epoch, which calls to agents carry.

Clocks are not compared. Another holder's Lease is taken when it did not change for its duration on our own clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .kinds import LEASES, Api, ApiError
from .leasing import KIND_LABEL, LEADER_LEASE, micro_time
from .names import MANAGER, Json
from .objects import number, text

log = logging.getLogger("ebbtide.lock")
NAME = "ebbtide-operator"


@dataclass(frozen=True)
class Timing:
    """Seconds. Who cannot renew within `renew_deadline` stops before another one may start."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class LostError(Exception):
    """Another operator leads, or may."""


class Leadership:
    """This process's claim. `identity` is the pod's name and UID: a recreated pod of that name is another one.

    The Lease goes with its owner, our ServiceAccount, so an uninstall leaves none; it outlives every pod, and so the
    epoch grows over all of an installation's operators.
    """

    def __init__(
        self, api: Api, namespace: str, identity: str, timing: Timing | None = None, owner: Json | None = None
    ) -> None:
        self.epoch = 0
        self._api, self._namespace, self._identity = api, namespace, identity
        self._timing, self._owner = timing or Timing(), owner
        self._version, self._least = "", 0
        self._seen: tuple[str, float] = ("", 0.0)
        self.echo = time.monotonic()

    async def acquire(self) -> int:
        """Return the leader's epoch, once we lead."""
        while True:
            if await asyncio.to_thread(self._try):
                log.info("leading as %s, epoch %d", self._identity, self.epoch)
                return self.epoch
            await asyncio.sleep(self._timing.retry)

    async def keep(self, lost: Callable[[], bool] = lambda: False) -> None:
        """Renew for ever. Raises LostError as soon as somebody else may lead."""
        renewed = time.monotonic()
        while not lost():
            await asyncio.sleep(self._timing.retry)
            started = time.monotonic()
            try:
                await asyncio.to_thread(self._renew)
                renewed = started
            except ApiError as error:
                if error.conflict or error.missing:
                    raise LostError(f"the Lease {NAME} was taken: {error}") from error
                if time.monotonic() - renewed > self._timing.renew_deadline:
                    raise LostError(f"the Lease {NAME} could not be renewed: {error}") from error
                log.warning("the Lease %s could not be renewed yet: %s", NAME, error)

    async def release(self) -> None:
        """Let another operator lead at once."""
        try:
            await asyncio.to_thread(self._write, self._lease("", self.epoch))
        except ApiError as error:
            log.info("the Lease %s was not released: %s", NAME, error)

    def see(self, lease: Mapping[str, object]) -> None:
        """Hear of our own renewal through the watch: it lives."""
        if text(lease, "metadata", "name") == NAME:
            self.echo = time.monotonic()

    def hear_of(self, epoch: int, ours: bool) -> None:
        """Hear of the highest epoch that an agent has seen of an operator; `ours` may be it.

        A Lease that was deleted and made again starts low, and agents would refuse us: the next renewal goes above. Who
        does not lead any more cannot renew, so only the leader ever does.
        """
        if epoch > self.epoch or (epoch == self.epoch and not ours):
            self._least = max(self._least, epoch + 1)

    def _try(self) -> bool:
        try:
            found = self._api.get(LEASES, self._namespace, NAME)
        except ApiError as error:
            self._version = ""
            return self._claim(1) if error.missing else False
        self._version = text(found, "metadata", "resourceVersion")
        holder, epoch = text(found, "spec", "holderIdentity"), number(found, "spec", "leaseTransitions")
        if holder not in ("", self._identity) and not self._is_over(found):
            return False
        return self._claim(epoch + 1)

    def _is_over(self, lease: Mapping[str, object]) -> bool:
        now = time.monotonic()
        if self._seen[0] != self._version:
            self._seen = (self._version, now)
        duration = number(lease, "spec", "leaseDurationSeconds") or self._timing.duration
        return now - self._seen[1] > duration

    def _claim(self, epoch: int) -> bool:
        try:
            self._write(self._lease(self._identity, epoch))
        except ApiError as error:
            log.info("somebody else was first: %s", error)
            return False
        self.epoch = epoch
        return True

    def _renew(self) -> None:
        epoch = max(self.epoch, self._least)
        self._write(self._lease(self._identity, epoch))
        if epoch > self.epoch:
            log.warning("agents have seen epoch %d of an operator: ours is %d now", epoch - 1, epoch)
        self.epoch = epoch

    def _write(self, lease: Json) -> None:
        if self._version:
            made = self._api.replace(LEASES, self._namespace, NAME, lease)
        else:
            made = self._api.create(LEASES, self._namespace, lease)
        self._version = text(made, "metadata", "resourceVersion")

    def _lease(self, holder: str, epoch: int) -> Json:
        labels = {"app.kubernetes.io/managed-by": MANAGER, KIND_LABEL: LEADER_LEASE}
        metadata: Json = {"name": NAME, "namespace": self._namespace, "labels": labels}
        if self._owner:
            metadata["ownerReferences"] = [self._owner]
        if self._version:
            metadata["resourceVersion"] = self._version
        spec: Json = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(self._timing.duration)),
            "leaseTransitions": epoch,
            "renewTime": micro_time(),
        }
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
