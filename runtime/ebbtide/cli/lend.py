"""`ebbtide lend`: borrow by hand, for a command, for a time, or until Enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from rich.status import Status

from ..client.group import LENT, Group
from ..client.loan import Loan
from ..progress import Progress
from .console import err, out, say
from .status import connection_of
from .tables import lent, returned


@dataclass(frozen=True)
class Asked:
    """What is borrowed, and what for. `hold` and `ttl` are in seconds."""

    group: str
    command: tuple[str, ...] = ()
    hold: float | None = None
    need_mib: float | None = None
    ttl: float = 30.0


@dataclass
class Holding:
    """What runs with the borrowed memory; it is ended when the memory is somebody else's."""

    process: subprocess.Popen[bytes] | None = None
    lost: EbbtideError | None = None
    status: Status | None = field(default=None, repr=False)

    def progress(self, report: Progress) -> None:
        """Show how the borrow stands."""
        if self.status is not None:
            self.status.update(f"{report.stage}: {report.text}")

    def take_away(self, lost: EbbtideError) -> None:
        """End the command: it uses memory that it does not have any more."""
        self.lost = lost
        if self.process is not None:
            self.process.terminate()


def lend(asked: Asked, home: Path | None) -> int:
    """Borrow, hold, give back; return the command's exit code."""
    if not asked.command and asked.hold is None and not sys.stdin.isatty():
        message = "there is no terminal to wait at."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action="Add --for 30s, or -- COMMAND.")
    if asked.command:
        _check_command(asked)
    holding = Holding()
    with Group(asked.group, connection=connection_of(home)) as group:
        loan = group.borrow(
            ttl=asked.ttl, need_mib=asked.need_mib, on_progress=holding.progress, on_lost=holding.take_away
        )
        code = _borrow(loan, asked, holding)
    if loan.reclaimed is not None:
        out.print(returned(loan.reclaimed))
    return code


def _check_command(asked: Asked) -> None:
    """Refuse, before an engine sleeps for it, what could not be run then."""
    if asked.hold is not None:
        message = "--for and a command exclude each other: a command holds the memory until it ends."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action="Leave one of them out.")
    if shutil.which(asked.command[0]) is None:
        message = f"{asked.command[0]} cannot be run: there is no such program."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action="Check the command after --.")


def _borrow(loan: Loan, asked: Asked, holding: Holding) -> int:
    holding.status = err.status(f"Borrowing {asked.group}")
    with holding.status, loan:
        holding.status.stop()
        out.print(lent(loan.lend))
        code = _hold(asked, holding)
        holding.status.update("Giving back")
        holding.status.start()
    return code


def _hold(asked: Asked, holding: Holding) -> int:
    if asked.command:
        return _run(asked, holding)
    try:
        if asked.hold is None:
            say("The memory is yours. [bold]Enter[/] gives it back.")
            sys.stdin.readline()
        else:
            _wait(asked.hold, holding)
    except KeyboardInterrupt:
        # As good as Enter: nothing was interrupted.
        say("")
    return 0


def _wait(seconds: float, holding: Holding) -> None:
    deadline = time.monotonic() + seconds
    with err.status("") as status:
        while (left := deadline - time.monotonic()) > 0 and holding.lost is None:
            status.update(f"Held for {left:.0f} s more; Ctrl-C gives back now")
            time.sleep(min(left, 0.2))


def _run(asked: Asked, holding: Holding) -> int:
    command = asked.command
    try:
        holding.process = subprocess.Popen(command, env={**os.environ, LENT: asked.group})
    except OSError as problem:
        message = f"{command[0]} cannot be run: {problem.strerror}."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action="Check the command after --.") from problem
    while True:
        try:
            code = holding.process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:
            # The terminal told the command too: it decides how to end, and then the memory is given back.
            continue
