"""A launcher with a pretended engine: `python -m tests.support.fake_launcher --member FILE`. See fake_agent.

It announces a boot, waits for its grant, runs `sleep` as its engine in a session of its own, and ends it when told:
exit code 0 on SIGTERM, 70 when the agent asks for it, 71 when the engine died. Standard library only, to start at once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TICK = 0.02


def number(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def put(path: Path, value: int) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(str(value))
    temporary.replace(path)


def start_engine(member: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "EBBTIDE_MEMBER": member}
    return subprocess.Popen(["sleep", "100000"], env=environment, start_new_session=True)


def run(member: str) -> int:
    memory, stop = Path(json.loads(Path(member).read_text())["memory"]), []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    boot = number(memory / "boot") + 1
    put(memory / "engine", 0)
    put(memory / "boot", boot)
    engine: subprocess.Popen[bytes] | None = None
    code = 0
    while not stop and not code:
        if engine is None and number(memory / "grant") == boot:
            engine = start_engine(member)
            put(memory / "engine", engine.pid)
        if number(memory / "kill") == boot:
            code = 70
        elif engine is not None and engine.poll() is not None:
            code = 71
        time.sleep(TICK)
    if engine is not None:
        engine.kill()
        engine.wait()
        put(memory / "engine", 0)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[sys.argv.index("--member") + 1]))
