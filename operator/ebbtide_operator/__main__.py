"""`python -m ebbtide_operator --home DIR -f FILE`: one operator in the foreground."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.load import load_file
from ebbtide_api.server import InferenceServer

from .app import run
from .settings import PORT, Settings, default_home


def arguments() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(prog="ebbtide_operator", description="Run servers whose memory can be lent.")
    parser.add_argument("-f", "--file", action="append", type=Path, help="YAML with InferenceServers; may be repeated.")
    parser.add_argument("--home", type=Path, default=default_home(), help="the folder that survives")
    parser.add_argument("--port", type=int, default=PORT, help="the gateway's port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--keep", action="store_true", help="at the end leave the members to the next operator")
    return parser


def servers_of(files: Sequence[Path] | None) -> list[InferenceServer] | None:
    """Return the servers of files; None without files. Raises EbbtideError that lists what is wrong."""
    if files is None:
        return None
    objects = [found for file in files for found in load_file(file)]
    others = [found.kind for found in objects if not isinstance(found, InferenceServer)]
    if others:
        raise EbbtideError(ErrorCode.NOT_YET_SUPPORTED, f"{others[0]} is not supported in local mode yet")
    return [found for found in objects if isinstance(found, InferenceServer)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 2 for what the caller can correct."""
    asked = arguments().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        run(servers_of(asked.file), Settings(home=asked.home, port=asked.port), keep=asked.keep)
    except EbbtideError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
