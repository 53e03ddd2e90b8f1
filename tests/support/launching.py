"""Runs the real launcher as a process, with a scripted engine or the real one, and reads its page."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ebbtide_api.member import MemberConfig
from ebbtide_runtime.launcher.processes import everyone, family
from ebbtide_runtime.native import Field, Measurement, Page

MIB = 1 << 20
_FAKE = """
import sys
from ebbtide_runtime import launch
launch.LOOK_S = 0
sys.exit(launch.main(sys.argv[1:3], lambda path: sys.argv[3:]))
"""


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    """Wait for a condition."""
    due = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < due, f"waited {seconds} s for {what}"
        time.sleep(0.005)


class Launch:
    """One launcher process. `engine` is the scripted engine's command; without it vLLM is launched."""

    def __init__(self, path: Path, engine: list[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        self.member = MemberConfig.model_validate_json(path.read_bytes())
        self.log = Path(self.member.home) / "engine.log"
        before = self._boot()
        start = [sys.executable, "-c", _FAKE] if engine else [sys.executable, "-m", "ebbtide_runtime.launch"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*start, "--member", str(path), *(engine or [])],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})},
            )
        until(lambda: self._boot() > before or self.process.poll() is not None, "the launcher")
        self.page = Page.open(self.member.page_path)

    def _boot(self) -> int:
        if not os.path.exists(self.member.page_path):
            return 0
        page = Page.open(self.member.page_path)
        try:
            return page.get(Field.BOOT)
        finally:
            page.close()

    def get(self, field: Field) -> int:
        """Read a word of the page."""
        return self.page.get(field)

    def grant(self) -> None:
        """Say what the agent says when the engine owns the device."""
        self.page.set(Field.GRANT, self.get(Field.BOOT))

    def kill(self) -> None:
        """Say what the agent says when the engine is to end."""
        self.page.set(Field.KILL, self.get(Field.BOOT))

    def started(self) -> int:
        """Wait for the engine, and return its pid."""
        until(lambda: self.get(Field.ENGINE_PID) != 0 or self.process.poll() is not None, "the engine")
        return self.get(Field.ENGINE_PID)

    def measure(self, seconds: float = 20) -> Measurement:
        """Ask for a measurement, and return the one that answers."""
        request = self.page.add(Field.MEASURE_REQUEST, 1)
        found: list[Measurement] = []

        def answered() -> bool:
            measurement = self.page.measurement()
            if measurement is not None and measurement.answered >= request:
                found.append(measurement)
            return bool(found)

        until(answered, "a measurement", seconds)
        return found[0]

    def used_mib(self) -> float:
        """Measure what the engine uses."""
        return self.measure().used_bytes / MIB

    def family(self) -> int:
        """Count the engine's live processes."""
        pid = self.get(Field.ENGINE_PID)
        return len(family(pid, everyone())) if pid else 0

    def wait(self, seconds: float = 30) -> int:
        """Wait for the launcher's end, and return its exit status."""
        return self.process.wait(seconds)

    def last_line(self) -> str:
        """Return the last line that engine or launcher wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """End all of it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        pid = self.get(Field.ENGINE_PID)
        for each in family(pid, everyone()) if pid else []:
            os.kill(each.pid, signal.SIGKILL)
        self.page.close()


def ask(port: int, path: str) -> int:
    """Return the status with which a probe on this machine is answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
