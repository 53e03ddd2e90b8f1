"""Run the operator on a cluster. Exit status: 0 asked to end, 1 failed, 64 what it was told is wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from .api import ApiServer
from .app import App
from .settings import KubeSettings

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def main() -> int:
    """Run until told to end. Returns the exit status."""
    logging.basicConfig(level=os.environ.get("EBBTIDE_LOG", "INFO"), format=_FORMAT, stream=sys.stderr)
    # Their lines would tell of every call, headers included.
    for name in ("httpx2", "httpcore2", "uvicorn", "asyncio", "kopf", "urllib3", "kubernetes"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = KubeSettings.of()
        settings.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return asyncio.run(_run(settings))
    except (OSError, ValueError) as error:
        print(f"ebbtide: {error}", file=sys.stderr, flush=True)
        return 64


async def _run(settings: KubeSettings) -> int:
    return await App(ApiServer.connect(), settings).run()


if __name__ == "__main__":
    sys.exit(main())
