"""A home with an operator process on it, and what a caller and a saboteur can do to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import yaml
from ebbtide_operator.drive import proc
from ebbtide_operator.drive.layout import Layout
from ebbtide_operator.drive.store import GroupStore
from ebbtide_operator.plan import GroupRecord

from .given import document_of, until

GROUP = "/v1/groups/actor"


class House:
    """One home. Members are fake; everything else is real."""

    def __init__(self, folder: Path, **spec: Any) -> None:
        self.folder, self.home, self.shm = folder, folder / "home", folder / "shm"
        self.file = folder / "server.yaml"
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text("{}")
        self.file.write_text(yaml.safe_dump(document_of(folder / "model", **spec)))
        self.layout = Layout.of(self.home, self.shm)
        self.operator: subprocess.Popen[bytes] | None = None
        self.http: httpx2.Client | None = None
        # The trainer is measured. This process is no good one: it holds whatever tests before have imported.
        self.trainer = subprocess.Popen(["sleep", "infinity"])

    # the operator

    operator_module = "tests.unit.operator.fake_operator"

    def start(self, *options: str, file: bool = True) -> None:
        """Start an operator and wait for its gateway."""
        command = [sys.executable, "-m", self.operator_module, str(self.home), str(self.shm), *options]
        with (self.folder / "operator.log").open("ab") as log:
            self.operator = subprocess.Popen([*command, *([str(self.file)] if file else [])], stdout=log, stderr=log)
        until(lambda: self._announced() or self.ended, 20)
        assert not self.ended, self.log

    @property
    def ended(self) -> bool:
        return self.operator is None or self.operator.poll() is not None

    @property
    def log(self) -> str:
        return (self.folder / "operator.log").read_text()

    def _announced(self) -> bool:
        try:
            facts = json.loads((self.home / "operator.json").read_text())
        except (OSError, ValueError):
            return False
        if self.operator is None or facts["pid"] != self.operator.pid:
            return False
        token = Path(facts["tokenPath"]).read_text()
        self._hang_up()
        self.http = httpx2.Client(base_url=facts["url"], headers={"Authorization": f"Bearer {token}"}, timeout=30)
        return True

    def _hang_up(self) -> None:
        if self.http is not None:
            self.http.close()

    def kill(self) -> None:
        """SIGKILL the operator; its members live on."""
        assert self.operator is not None
        self.operator.kill()
        self.operator.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the operator to end, and return its exit code."""
        assert self.operator is not None
        self.operator.send_signal(number)
        return self.operator.wait(30)

    def close(self) -> None:
        """End whatever is left, hard."""
        self._hang_up()
        self.trainer.kill()
        self.trainer.wait()
        if self.operator is not None and self.operator.poll() is None:
            self.operator.kill()
            self.operator.wait()
        # Twice empty: a process that was just started does not carry its arguments yet.
        for _ in range(2):
            until(self._nobody, 10)
            time.sleep(0.02)

    def _nobody(self) -> bool:
        left = self.processes()
        proc.send(left, signal.SIGKILL)
        return not left

    # what is seen

    def call(self, method: str, path: str, **how: Any) -> httpx2.Response:
        assert self.http is not None
        return self.http.request(method, path, **how)

    def server(self) -> dict[str, Any]:
        return self.call("GET", "/v1/servers/chat/state").json()  # type: ignore[no-any-return]

    def phases(self) -> list[str]:
        return [member["phase"] for member in self.server()["members"]]

    def serving(self, members: int = 1) -> None:
        until(lambda: self.phases() == ["Running"] * members, 30)

    def processes(self) -> list[proc.Process]:
        members = self.layout.members
        homes = members.iterdir() if members.exists() else ()
        return [found for home in homes for found in proc.of_member(str(home / "member.json"))]

    def pid(self, kind: str, member: str = "chat-0") -> int:
        """The pid of an agent or a launcher."""
        path = self.layout.member(member) / f"{kind}.pid"
        return int(until(lambda: path.exists() and json.loads(path.read_text())["pid"]))

    def engine(self, member: str = "chat-0") -> int:
        path = self.layout.member_memory(member) / "engine"
        return int(until(lambda: path.exists() and int(path.read_text() or 0)))

    def record(self) -> GroupRecord:
        return GroupStore(self.layout.groups).load("actor")

    def script(self, member: str = "chat-0", **lies: Any) -> None:
        """Tell a member what to do wrong from its next call on."""
        path = self.layout.member(member) / "script.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(lies))
        temporary.replace(path)

    # what callers do

    def acquire(self, **fields: Any) -> dict[str, Any]:
        body = {"holder": "trainer", "ttlSeconds": 60, "pid": self.trainer.pid, **fields}
        return self.call("POST", f"{GROUP}/lease", json=body).json()  # type: ignore[no-any-return]

    def granted(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Wait for a lease's turn, and return it as it is then: its epoch is known only now."""

        def turn() -> dict[str, Any] | None:
            seen = self.call("GET", f"{GROUP}/lease/{lease['id']}", params={"wait": "5"}).json()
            return seen if seen["stage"] == "Granted" else None

        return dict(until(turn, 30))

    def ask(self, verb: str, lease: dict[str, Any], **body: Any) -> httpx2.Response:
        return self.call("POST", f"{GROUP}:{verb}", json=body, headers={"Ebbtide-Epoch": str(lease["epoch"])})

    def ended_of(self, operation: str) -> dict[str, Any]:
        return dict(until(lambda: self._ended(operation), 30))

    def _ended(self, operation: str) -> dict[str, Any] | None:
        seen = self.call("GET", f"/v1/operations/{operation}", params={"wait": "10"}).json()
        return seen if seen.get("status") in {"Done", "Failed"} else None

    def perform(self, verb: str, lease: dict[str, Any], **body: Any) -> dict[str, Any]:
        answer = self.ask(verb, lease, **body)
        assert answer.status_code in {200, 202}, answer.text
        return self.ended_of(answer.json()["id"])

    def lent(self, **fields: Any) -> dict[str, Any]:
        lease = self.granted(self.acquire(**fields))
        done = self.perform("lend", lease)
        assert done["status"] == "Done", done
        return lease

    def publish(self, lease: dict[str, Any], version: int) -> None:
        folder = Path(lease["handoff"]) / f"v{version}"
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"version": version}))
