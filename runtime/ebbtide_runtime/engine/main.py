"""The engine's first process: checks the command line with vLLM's own parser, then becomes vLLM's API server.

Run by our launcher as `python -m ebbtide_runtime.engine.main --member FILE`. Exit 64: the arguments were refused, and
the last line on stderr says why.
"""

from __future__ import annotations

import sys

from . import compat, member
from .arguments import RefusedError, command_line

REFUSED = 64


def main(argv: list[str]) -> int:
    """Serve until the end. Returns an exit status."""
    config = member.read(argv[argv.index("--member") + 1])
    try:
        compat.check_version(compat.installed_version())
        arguments = command_line(compat.server_parser(), config)
    except (RefusedError, compat.UnsupportedEngineError) as problem:
        sys.stdout.flush()
        print(f"ebbtide: {problem}", file=sys.stderr, flush=True)
        return REFUSED
    compat.serve(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
