"""A launcher with the scripted engine, as a process: `python -m tests.support.scripted_launcher --member FILE`.

With it a whole operator runs real agents without vLLM: see stream_house.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from ebbtide_api.member import load_member
from ebbtide_runtime.launcher.page import open_or_create

from tests.support.fake_engine import FakeEngine


def run(path: str) -> int:
    # Whatever it starts is the member's, and is found as such when this process was killed.
    os.environ["EBBTIDE_MEMBER"] = path
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    member = load_member(path)
    page = open_or_create(member.page_path)
    engine = FakeEngine(member, Path(member.secret_path).read_text().strip(), page)
    ended.wait()
    engine.close()
    page.close()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[sys.argv.index("--member") + 1]))
