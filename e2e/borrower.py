"""Runs in the trainer's pod: borrows, says what it got, holds it until told, gives it back; TURNS times, from FIRST on.

One line of JSON for each lend and each return. Told: the file /tmp/back-N appears. With WEIGHTS, a safetensors file,
each turn publishes: first those weights with the last norm turned around, which makes the unlikeliest token the
likeliest, then as they are, and so on.
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
        if source := os.environ.get("WEIGHTS"):
            loan.publish_path(weights(Path(source), turned=number % 2 == 0), version=number + 1)
        began = time.monotonic()
    assert loan.reclaimed is not None
    say(turn=number, what="reclaim", ms=milliseconds(began), result=loan.reclaimed.wire())


def weights(source: Path, *, turned: bool) -> Path:
    """Write the weights to publish, and return their file."""
    data = bytearray(source.read_bytes())
    size = 8 + int.from_bytes(data[:8], "little")
    norm = json.loads(data[8:size])["model.norm.weight"]
    begin, end = (size + offset for offset in norm["data_offsets"])
    if turned:
        high = slice(begin + 1, end, 2)  # of each bfloat16: its sign is there
        data[high] = data[high].translate(bytes(byte ^ 0x80 for byte in range(256)))
    target = Path("/tmp/new.safetensors")
    target.write_bytes(data)
    return target


def milliseconds(began: float) -> int:
    """Return the time since then."""
    return round((time.monotonic() - began) * 1000)


def say(**line: object) -> None:
    """Tell whoever reads the log."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Borrow as often as asked."""
    group = Group(os.environ["GROUP"])
    first = int(os.environ["FIRST"])
    for number in range(first, first + int(os.environ["TURNS"])):
        turn(group, number)


if __name__ == "__main__":
    main()
