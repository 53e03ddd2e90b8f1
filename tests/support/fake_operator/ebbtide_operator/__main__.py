"""Behaves as the operator does, or as $FAKE_OPERATOR says.

refuse (exit 2), crash (exit 1), crash-later (exit 3), never-ready, stubborn (deaf to SIGTERM)
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from ebbtide_api.verbs import ServerState

from tests.support.fake_gateway import TOKEN, FakeGateway, serving

MODE = os.environ.get("FAKE_OPERATOR", "")
stopping = False


def stop(number: int, frame: object) -> None:
    global stopping
    stopping = True


class Slow(FakeGateway):
    """Ready at the third look."""

    looks = 0

    def _server_state(self) -> ServerState:
        self.looks += 1
        state = super()._server_state()
        if MODE != "never-ready" and self.looks > 2:
            return state
        unready = {"ready": False, "serving": False, "reason": "Starting", "message": "the engine loads."}
        return state.model_copy(update=unready)


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("-f", "--home", "--port"):
        parser.add_argument(name, action="append")
    asked = parser.parse_args()
    home = Path(asked.home[0])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if MODE in {"refuse", "crash"}:
        print("starting\nport 7411 is taken", file=sys.stderr)
        return 2 if MODE == "refuse" else 1
    with serving(Slow(home / "handoff"), int(asked.port[0])) as url:
        (home / "token").write_text(TOKEN)
        record = {"url": url, "pid": os.getpid(), "tokenPath": str(home / "token")}
        (home / "operator.json").write_text(json.dumps(record))
        deadline = time.monotonic() + (1.5 if MODE == "crash-later" else 60)
        while (not stopping or MODE == "stubborn") and time.monotonic() < deadline:
            time.sleep(0.02)
    (home / "operator.json").unlink()
    if MODE == "crash-later":
        print("out of luck", file=sys.stderr)
        return 3
    print("ended in order")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
