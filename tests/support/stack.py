"""The whole of Ebbtide on this machine: the real operator, agent, launcher and vLLM, as processes of one home.

Stack    starts, stops and kills them, and reads what they say and what the kernel says of them
Watch    samples the control page all the time: what the member was in between two looks of a test
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import yaml
from ebbtide import EbbtideError, Group, Loan
from ebbtide.client.connection import Connection
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import PHASE_NUMBER, Phase, StateVector
from ebbtide_api.verbs import DEADLINE, EPOCH, IDEMPOTENCY_KEY, GroupState, Operation, OperationStatus, ServerState
from ebbtide_runtime.launcher.processes import Process
from ebbtide_runtime.native import Field, Page

from tests.support import stack_processes as processes
from tests.support.engines import free_port
from tests.support.launching import until
from tests.support.models import medium
from tests.support.stack_traffic import COUNT, greedy

START_S = 300.0  # an engine starts in 30 s on two quiet cores; a loaded machine takes its time
STEP_S = 60.0
SERVER, MEMBER, GROUP = "tiny", "tiny-0", "actor"
_PHASES = {number: phase for phase, number in PHASE_NUMBER.items()}


def document(model: Path, port: int, **spec: Any) -> dict[str, Any]:
    """Return a server like the example's; `spec` replaces parts of it."""
    return {
        "apiVersion": "ebbtide.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": SERVER},
        "spec": {
            "model": {"source": str(model)},
            "engine": {
                "port": port,
                "extraArgs": ["--enforce-eager", "--max-model-len=1024", "--max-num-seqs=8", "--dtype=bfloat16"],
                "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "1"}],
            },
            "colocation": {"group": GROUP, "hostMemoryLimit": "2Gi", "devices": {"cpu": {"memory": "3Gi"}}},
            **spec,
        },
    }


def command(home: Path, *arguments: object) -> list[str]:
    """Return what runs an operator."""
    return [sys.executable, "-m", "ebbtide_operator", "--home", str(home), *map(str, arguments)]


class Stack:
    """One operator's home, and the processes on it."""

    def __init__(self, folder: Path, model: Path | None = None, **spec: Any) -> None:
        self.home = folder / "home"
        self.file = folder / "server.yaml"
        self.log = folder / "operator.log"
        self.port, self.data_port = free_port(), free_port()
        self.file.write_text(yaml.safe_dump(document(model or medium(), self.data_port, **spec)))
        self.versions = itertools.count(1)
        self.memory: Path | None = None
        self.oracle: dict[int, list[int]] = {}
        """Greedy tokens by the seed of the weights, taken while nothing disturbed the engine."""
        self.seed = 0
        """The seed of the weights that should serve now."""
        self._engines = processes.Engines(self.home)
        self._operator: subprocess.Popen[bytes] | None = None
        self._page: Page | None = None
        self._group: Group | None = None

    # The operator's process

    def start(self) -> None:
        """Start the operator, and wait until its gateway answers."""
        with self.log.open("ab") as log:
            self._operator = subprocess.Popen(
                command(self.home, "-f", self.file, "--port", self.port), stdout=log, stderr=log, cwd=self.home.parent
            )
        until(lambda: self._answers() or self._operator_ended(), "the gateway", STEP_S)
        assert not self._operator_ended(), self.log.read_text()
        self.memory = Path(json.loads((self.home / "operator.json").read_text())["memory"])

    def _operator_ended(self) -> bool:
        return self._operator is None or self._operator.poll() is not None

    def _answers(self) -> bool:
        try:
            return self.call("GET", "/health").status_code == 200 and (self.home / "operator.json").exists()
        except httpx2.HTTPError:
            return False

    def kill_operator(self) -> None:
        """SIGKILL the operator."""
        assert self._operator is not None
        self._operator.kill()
        self._operator.wait()

    def stop(self) -> int:
        """End everything as `ebbtide down` does, and return the operator's exit code."""
        self._let_go()
        assert self._operator is not None
        self._operator.send_signal(signal.SIGTERM)
        return self._operator.wait(90)

    def destroy(self) -> None:
        """End everything, whatever state it is in, and leave nothing on the machine."""
        try:
            if not self._operator_ended():
                self.stop()
        except subprocess.TimeoutExpired:
            self.kill_operator()
        finally:
            self._let_go()
            processes.sweep(self.processes)
            if self.memory is not None:
                shutil.rmtree(self.memory, ignore_errors=True)

    # What the gateway says

    @property
    def connection(self) -> Connection:
        """How a trainer reaches the gateway; the port stays when the operator is restarted."""
        token = self.home / "token"
        return Connection(f"http://127.0.0.1:{self.port}", token.read_text().strip() if token.exists() else "")

    def call(
        self, method: str, path: str, body: Any = None, *, epoch: int | None = None, key: str = ""
    ) -> httpx2.Response:
        """Call the gateway once, with nothing repeated."""
        where = self.connection
        return _send(method, f"{where.url}{path}", body, where.headers, epoch, key)

    def agent(
        self, method: str, path: str, body: Any = None, *, epoch: int | None = None, key: str = ""
    ) -> httpx2.Response:
        """Call the member's agent once."""
        token = Path(self.member.token_path).read_text().strip()
        url = f"http://{self.member.host}:{self.member.agent_port}{path}"
        return _send(method, url, body, {"Authorization": f"Bearer {token}"}, epoch, key)

    def group(self) -> GroupState:
        """Return who owns the device."""
        answer = self.call("GET", f"/v1/groups/{GROUP}")
        assert answer.status_code == 200, answer.text
        return GroupState.model_validate_json(answer.content)

    def server(self) -> ServerState:
        """Return the server."""
        answer = self.call("GET", f"/v1/servers/{SERVER}/state")
        assert answer.status_code == 200, answer.text
        return ServerState.model_validate_json(answer.content)

    def state(self) -> StateVector:
        """Return the member's state as the gateway tells it."""
        members = self.server().members
        assert len(members) == 1, "the agent does not answer"
        return members[0]

    def seen(self, *phases: Phase) -> bool:
        """Whether the gateway says that the member is in one of these phases."""
        members = self.server().members
        return bool(members) and members[0].phase in phases

    def finished(self, operation: Operation) -> Operation:
        """Wait for an operation of the gateway."""
        found = operation

        def ended() -> bool:
            nonlocal found
            answer = self.call("GET", f"/v1/operations/{operation.id}?wait=1")
            found = Operation.model_validate_json(answer.content)
            return found.status is not OperationStatus.RUNNING

        until(ended, operation.verb, STEP_S)
        return found

    @property
    def trainer(self) -> Group:
        """The trainer: this process."""
        if self._group is None:
            self._group = Group(GROUP, connection=self.connection, holder="a test")
        return self._group

    # Weights

    def learn(self, seed: int) -> None:
        """Take the tokens of what serves now as those of a seed."""
        self.seed, self.oracle[seed] = seed, self.tokens()

    def publish(self, loan: Loan, seed: int) -> int:
        """Publish the weights of a seed, as the next version."""
        version = next(self.versions)
        loan.publish_path(medium(seed), version=version)
        return version

    def teach(self, seed: int) -> int:
        """Borrow, publish, give back: from here on the weights of that seed serve."""
        with self.trainer.borrow() as loan:
            version = self.publish(loan, seed)
        self.seed = seed
        return version

    def right(self) -> bool:
        """Whether the tokens are exactly those of the weights that should serve."""
        return self.tokens() == self.oracle[self.seed]

    # What is there

    @property
    def member(self) -> MemberConfig:
        """What the member was told at birth."""
        return MemberConfig.model_validate_json((self.home / "members" / MEMBER / "member.json").read_bytes())

    @property
    def page(self) -> Page:
        """The control page."""
        if self._page is None:
            until(lambda: Path(self.member.page_path).exists(), "the control page", STEP_S)
            self._page = Page.open(self.member.page_path)
        return self._page

    def _let_go(self) -> None:
        """Forget what ends with the operator."""
        page, self._page = self._page, None
        group, self._group = self._group, None
        if page is not None:
            page.close()
        if group is not None:
            group.close()

    @property
    def phase(self) -> Phase:
        """The phase on the control page."""
        return _PHASES[self.page.get(Field.PHASE)]

    def wait_for_phase(self, *phases: Phase) -> None:
        """Wait until the control page shows one of these phases; some last some milliseconds only."""
        due = time.monotonic() + STEP_S
        while self.phase not in phases:
            assert time.monotonic() < due, f"none of {phases} was seen; it is {self.phase}"
            time.sleep(0.0005)

    @property
    def url(self) -> str:
        """The engine's data port, without /v1."""
        return f"http://127.0.0.1:{self.data_port}"

    def tokens(self, count: int = COUNT) -> list[int]:
        """Return greedy tokens."""
        return greedy(self.url, count)

    def processes(self) -> list[Process]:
        """Return every process of this home."""
        found = {each.pid: each for each in [*processes.of_home(self.home), *self.engine()]}
        return list(found.values())

    def engine(self) -> list[Process]:
        """Return the processes of the engine."""
        return self._engines.look()

    def engine_mib(self) -> float:
        """Measure the engine, from outside."""
        return processes.anonymous_mib(self.engine())

    def part(self, role: str) -> Process:
        """Return the engine's process of a role."""
        return self._engines.part(role)

    def agent_process(self) -> Process:
        """Return the agent."""
        (found,) = processes.running(self.home, "ebbtide_runtime.agent")
        return found

    def launcher_process(self) -> Process:
        """Return the launcher."""
        (found,) = processes.running(self.home, "ebbtide_runtime.launch")
        return found

    # Waiting

    def serving(self) -> bool:
        """Whether everything is at rest, and the engine takes requests."""
        try:
            server, group = self.server(), self.group()
        except httpx2.HTTPError:
            return False
        at_rest = server.ready and server.serving and group.owner == "engine" and group.lease is None
        return at_rest and all(member.admission and member.operation is None for member in server.members)

    def wait_until_serving(self, seconds: float = START_S) -> None:
        """Wait for that; say what is in the way otherwise."""
        due = time.monotonic() + seconds
        while not self.serving():
            assert not self._operator_ended(), self.log.read_text()[-4000:]
            assert time.monotonic() < due, f"it does not serve after {seconds} s: {self.server()!r}, {self.group()!r}"
            time.sleep(0.05)


def _send(method: str, url: str, body: Any, headers: dict[str, str], epoch: int | None, key: str) -> httpx2.Response:
    more = {IDEMPOTENCY_KEY: key or uuid4().hex, DEADLINE: "120", **({EPOCH: str(epoch)} if epoch is not None else {})}
    with httpx2.Client(timeout=90, trust_env=False) as client:
        sent = headers if method == "GET" else {**headers, **more}
        return client.request(method, url, json=body, headers=sent)


def refusal_of(call: Future[None], seconds: float = START_S) -> EbbtideError | None:
    """Wait for a call of the client, and return the error that it was answered with."""
    try:
        call.result(seconds)
    except EbbtideError as refusal:
        return refusal
    return None


class Watch:
    """Samples the control page every millisecond or so. It sees what two looks of a test would miss."""

    def __init__(self, page: Page) -> None:
        self.phases: list[Phase] = []
        self.epochs: list[int] = []
        self.closed = 0
        self._page = page
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(0.001):
            phase, epoch = _PHASES[self._page.get(Field.PHASE)], self._page.get(Field.EPOCH)
            if not self.phases or self.phases[-1] is not phase:
                self.phases.append(phase)
            if not self.epochs or self.epochs[-1] != epoch:
                self.epochs.append(epoch)
            self.closed += not self._page.admission

    def __enter__(self) -> Watch:
        self._thread.start()
        until(lambda: bool(self.phases), "the first sample")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
