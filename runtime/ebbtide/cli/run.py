"""Runs a command and turns what it raises into one line and an exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from ebbtide_api.errors import EbbtideError, ErrorCode

from .commands import app, settings
from .console import complain

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_ASKED_WRONG = {ErrorCode.INVALID_REQUEST, ErrorCode.NOT_YET_SUPPORTED}
REPORT = "A fault of Ebbtide: run again with --debug and report what it prints."


def main() -> None:
    """Run the command that was typed, and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. With --debug exceptions are raised, not told."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        app(args=list(arguments), prog_name="ebbtide", standalone_mode=True)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except EbbtideError as error:
        if settings.debug:
            raise
        complain(error)
        return USAGE if error.code in _ASKED_WRONG else FAILED
    except OSError as problem:
        return _unexpected(problem, "Check the path or the address, and who may use it.")
    except Exception as problem:  # nobody should have to read a traceback to learn what to do
        return _unexpected(problem, REPORT)
    return 0


def _unexpected(problem: Exception, next_action: str) -> int:
    if settings.debug:
        raise problem
    complain(EbbtideError(ErrorCode.INTERNAL, f"{type(problem).__name__}: {problem}", next_action=next_action))
    return FAILED
