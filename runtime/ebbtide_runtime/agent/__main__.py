"""Run one member's agent. Exit status: 0 asked to end, 64 what it was given is wrong, 78 its memory is damaged."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from enum import IntEnum
from pathlib import Path

import uvicorn
from ebbtide_api.member import MemberConfig, keep_member, load_member
from pydantic import ValidationError

from .agent import Agent
from .app import build
from .auth import Bearer, Callers
from .settings import Settings
from .store import StoreError

_SHUTDOWN_S = 3
_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class Exit(IntEnum):
    """The agent's exit statuses that are not 0 or a signal."""

    WRONG = 64
    DAMAGED = 78


def main(argv: list[str] | None = None) -> int:
    """Serve until told to end. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="ebbtide_runtime.agent", description="Control one member.")
    parser.add_argument("--member", required=True, help="the member's member.json")
    path = Path(parser.parse_args(argv).member)
    _log()
    try:
        config = load_member(path)
        keep_member(path, config.home)  # the agent is the first to start in a pod
        callers, tls = _access(config)
        app = build(Agent(config, Settings.of(os.environ)), callers)
    except StoreError as error:
        return _say(Exit.DAMAGED, str(error))
    except (OSError, ValueError, ValidationError) as error:
        return _say(Exit.WRONG, f"{path}: {error}")
    serve(app, config, tls)
    return 0


def _access(config: MemberConfig) -> tuple[Callers, dict[str, str]]:
    """Return who may call, and what the server needs for TLS: in a pod there is a key, locally a token file."""
    if "EBBTIDE_AUDIENCE" not in os.environ:
        return Bearer.from_file(config.token_path), {}
    from . import cluster  # what it needs is not there locally

    return cluster.enter(config, os.environ)


def _log() -> None:
    logging.basicConfig(level=os.environ.get("EBBTIDE_LOG", "INFO"), format=_FORMAT, stream=sys.stderr)
    # Their lines would say more of a call than we do, headers included.
    for name in ("httpx2", "httpcore2", "uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def serve(app: object, config: MemberConfig, tls: dict[str, str]) -> None:
    """Serve the application until SIGTERM or SIGINT."""
    settings = uvicorn.Config(
        app,
        host=config.host,
        port=config.agent_port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        **tls,
    )
    # The server raises the signal that ended it again, for whoever handled it before. Asked to end is not killed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(settings).run()


def _say(status: Exit, message: str) -> Exit:
    print(f"ebbtide: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
