"""A loan: the part of a borrow that a trainer sees."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import LendResult, ReclaimResult

from ..safetensors import files_of, pieces_in
from ..tensors import Names, Piece, pieces_of, total
from ..weights import Published, check_publishable, meter, publish, publish_path, warn_if_slow
from .borrowing import Borrowing
from .runners import AsyncRunner, Runner
from .uploading import Uploading


class _LoanBase:
    """What is known of a loan. Sizes are in MiB."""

    def __init__(self, core: Borrowing) -> None:
        self._core = core

    @property
    def group(self) -> str:
        """The group whose memory is lent."""
        return self._core.terms.group

    @property
    def lend(self) -> LendResult:
        """What was measured when the engines had gone to sleep, per device and member."""
        if self._core.lend is None:
            message = f"group {self.group} is not borrowed yet."
            raise EbbtideError(ErrorCode.NOT_LEASE_HOLDER, message, next_action="Use the loan inside its with block.")
        return self._core.lend

    @property
    def freed_mib(self) -> float:
        """Memory measured free by this lend, over all devices."""
        return sum(device.freed_mib for device in self.lend.devices)

    @property
    def epoch(self) -> int:
        """The fencing token: calls that carry an older one are refused."""
        return self.lend.epoch

    @property
    def published(self) -> Published | None:
        """What was published last: the version that serves after giving back."""
        return self._core.published

    @property
    def reclaimed(self) -> ReclaimResult | None:
        """How the engines came back; None until they did."""
        return self._core.reclaimed

    @property
    def lost(self) -> EbbtideError | None:
        """Why the lease was lost, if it was: then stop training, and borrow again."""
        return self._core.lost

    def check(self) -> None:
        """Raise STALE_EPOCH if the lease was lost. Cheap: for use inside a long training step."""
        self._core.check()

    def _publish(
        self, tensors: Mapping[str, object], version: int, dtype: object = None, names: Names | None = None
    ) -> Published:
        if self._core.held().streams:
            return self._stream(pieces_of(tensors, dtype=dtype, names=names), version)
        report = self._core.terms.on_progress
        done = publish(tensors, self._core.handoff(), version, dtype=dtype, names=names, on_progress=report)
        return self._remember(done)

    def _publish_path(self, path: str | os.PathLike[str], version: int, names: Names | None = None) -> Published:
        if self._core.held().streams:
            return self._stream(pieces_in(files_of(Path(path).resolve()), names), version)
        report = self._core.terms.on_progress
        return self._remember(publish_path(path, self._core.handoff(), version, names=names, on_progress=report))

    def _stream(self, pieces: Sequence[Piece], version: int) -> Published:
        check_publishable(pieces, version)
        size, core = total(pieces), self._core
        warn_if_slow(size)
        advance = meter(version, size, time.monotonic(), core.terms.on_progress, "sent")
        return self._remember(core.alone(Uploading(core.gateway, core.held(), version, pieces, advance).run()))

    def _remember(self, published: Published) -> Published:
        # Writing may have taken longer than the lease lived.
        self._core.check()
        self._core.published = published
        return published


class Loan(_LoanBase):
    """Lent memory, as a context manager: inside, the engines sleep and their memory is yours."""

    def __init__(self, core: Borrowing, runner: Runner) -> None:
        super().__init__(core)
        self._runner = runner

    def __enter__(self) -> Loan:
        self._runner.run(self._core.take())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._core.give_back(keep_new=problem is None))
        except EbbtideError as failure:
            if problem is None:
                raise
            _chain(problem, failure)

    def publish(
        self, tensors: Mapping[str, object], *, version: int, dtype: object = None, names: Names | None = None
    ) -> Published:
        """Publish a state dict (torch tensors or numpy arrays) to serve after giving back.

        `version` must be above the one that serves. `dtype` casts floating tensors (`"bfloat16"`); `names` renames.
        Raises STALE_EPOCH (the lease was lost), INVALID_REQUEST, VERSION_REGRESSION, HOST_MEMORY_INSUFFICIENT.
        """
        return self._publish(tensors, version, dtype, names)

    def publish_path(self, path: str | os.PathLike[str], *, version: int, names: Names | None = None) -> Published:
        """Publish a safetensors file or folder. Raises what `publish` raises."""
        return self._publish_path(path, version, names)


class AsyncLoan(_LoanBase):
    """Lent memory, as an asynchronous context manager."""

    def __init__(self, core: Borrowing, runner: AsyncRunner) -> None:
        super().__init__(core)
        self._runner = runner

    async def __aenter__(self) -> AsyncLoan:
        await self._runner.run(self._core.take())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._runner.run(self._core.give_back(keep_new=problem is None))
        except EbbtideError as failure:
            if problem is None:
                raise
            _chain(problem, failure)

    async def publish(
        self, tensors: Mapping[str, object], *, version: int, dtype: object = None, names: Names | None = None
    ) -> Published:
        """Publish a state dict, from a thread. As `Loan.publish`."""
        return await asyncio.to_thread(partial(self._publish, tensors, version, dtype, names))

    async def publish_path(
        self, path: str | os.PathLike[str], *, version: int, names: Names | None = None
    ) -> Published:
        """Publish a safetensors file or folder, from a thread. As `Loan.publish_path`."""
        return await asyncio.to_thread(partial(self._publish_path, path, version, names))


def _chain(problem: BaseException, failure: EbbtideError) -> None:
    """Let the block's own exception go on, and say on it that giving back failed too."""
    problem.add_note(f"ebbtide: giving the memory back failed too: {failure}")
    if problem.__context__ is None:
        problem.__context__ = failure
