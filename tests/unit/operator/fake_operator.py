"""An operator process whose members are fake: `python -m tests.unit.operator.fake_operator HOME SHM [--keep] FILE`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from ebbtide_operator.__main__ import servers_of
from ebbtide_operator.app import run
from ebbtide_operator.settings import Commands, Restarts, Settings

AGENT = (sys.executable, "-m", "tests.support.fake_agent")
LAUNCHER = (sys.executable, "-m", "tests.support.fake_launcher")


def main() -> None:
    home, memory, *rest = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    settings = Settings(
        home=Path(home),
        port=0,
        shared_memory=Path(memory),
        commands=Commands(agent=AGENT, launcher=LAUNCHER),
        restarts=Restarts(first=0.05, longest=0.5, stable=5.0),
        stop_grace=5.0,
    )
    files = [Path(name) for name in rest if name != "--keep"]
    run(servers_of(files or None), settings, keep="--keep" in rest)


if __name__ == "__main__":
    main()
