"""Runs in the trainer's pod: borrows, says what it got, holds it until told, gives it back; TURNS times.

One line of JSON for each lend and each return. Told: the file /tmp/back-N appears.
"""

import json
import os
import time
from pathlib import Path

from ebbtide.client import Group


def turn(group: Group, number: int) -> None:
    """Borrow once."""
    began = time.monotonic()
    with group.borrow(ttl=float(os.environ["TTL"]), timeout=120) as loan:
        say(turn=number, what="lend", ms=milliseconds(began), result=loan.lend.wire())
        while not Path(f"/tmp/back-{number}").exists():
            loan.check()
            time.sleep(0.05)
        began = time.monotonic()
    assert loan.reclaimed is not None
    say(turn=number, what="reclaim", ms=milliseconds(began), result=loan.reclaimed.wire())


def milliseconds(began: float) -> int:
    """Return the time since then."""
    return round((time.monotonic() - began) * 1000)


def say(**line: object) -> None:
    """Tell whoever reads the log."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Borrow as often as asked."""
    group = Group(os.environ["GROUP"])
    for number in range(int(os.environ["TURNS"])):
        turn(group, number)


if __name__ == "__main__":
    main()
