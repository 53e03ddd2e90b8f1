"""`ebbtide up`: the operator as a child process, watched until everything serves, and ended with us."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.load import load_file
from ebbtide_api.policy import KVCachePolicy
from ebbtide_api.server import InferenceServer
from ebbtide_api.supported import unsupported
from ebbtide_api.verbs import ServerState
from rich.live import Live

from ..client.connection import Connection, from_home
from .console import err, out, say
from .extras import INSTALL, OPERATOR, missing
from .status import Source
from .tables import members, table

INTERRUPTED = 130
START_TIMEOUT = 30.0
STOP_TIMEOUT = 60.0


def up(files: Sequence[Path], home: Path, port: int, *, detach: bool, timeout: float) -> int:
    """Run servers until Ctrl-C, or with `detach` until they serve. Raises what is wrong with the files first."""
    servers = _load(files)
    _require_operator()
    _refuse_second(home)
    child = Child.start(files, home.absolute(), port)
    try:
        with _terminated_is_interrupted():
            _wait_until_ready(child, timeout)
            _announce(servers, child, detach)
            return 0 if detach else child.outlive()
    except KeyboardInterrupt:
        child.stop()
        return INTERRUPTED
    except BaseException:
        child.stop()
        raise


def _load(files: Sequence[Path]) -> list[InferenceServer]:
    # The operator refuses the same, but does not know any more in which line it is.
    checks = ((ErrorCode.NOT_YET_SUPPORTED, unsupported), (ErrorCode.INVALID_REQUEST, _without_model))
    return [found for file in files for found in load_file(file, checks) if isinstance(found, InferenceServer)]


def _without_model(found: InferenceServer | KVCachePolicy) -> list[tuple[str, str]]:
    if not isinstance(found, InferenceServer) or (Path(found.spec.model.source) / "config.json").is_file():
        return []
    return [("spec.model.source", f"{found.spec.model.source} holds no model (no config.json is there)")]


def _require_operator() -> None:
    if lacking := missing(OPERATOR):
        message = f"this installation has only the client: {', '.join(lacking)} cannot be imported."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action=f"Install the rest: {INSTALL}.")


def _refuse_second(home: Path) -> None:
    try:
        connection = from_home(home)
    except EbbtideError:
        return
    message = f"an operator runs in {home} already, at {connection.url}."
    action = "Use it, end it with `ebbtide down`, or pass another --home."
    raise EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, message, next_action=action)


@dataclass
class Child:
    """The operator. It has a session of its own, so that Ctrl-C reaches us alone and it can end in order."""

    process: subprocess.Popen[bytes]
    home: Path
    log: Path
    log_start: int

    @classmethod
    def start(cls, files: Sequence[Path], home: Path, port: int) -> Child:
        """Start an operator."""
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = home / "operator.log"
        named = [part for file in files for part in ("-f", str(file.absolute()))]
        command = [sys.executable, "-m", "ebbtide_operator", *named, "--home", str(home), "--port", str(port)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
            return cls(process, home, log, output.tell())

    def connection(self) -> Connection:
        """Return its gateway once it has one. Raises UNREACHABLE or what ended it."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            self.check()
            try:
                return from_home(self.home)
            except EbbtideError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def check(self) -> None:
        """Raise if it ended by itself."""
        code = self.process.poll()
        if code is not None:
            raise self.epitaph(code)

    def epitaph(self, code: int) -> EbbtideError:
        """Return how it ended, in its own last words."""
        with self.log.open("rb") as file:
            file.seek(self.log_start)
            words = file.read().decode(errors="replace").strip().splitlines()
        last = words[-1] if words else "it said nothing"
        kind = ErrorCode.INVALID_REQUEST if code == 2 else ErrorCode.INTERNAL
        message = f"the operator ended with exit code {code}: {last}"
        return EbbtideError(kind, message, next_action=f"Its log is {self.log}.")

    def outlive(self) -> int:
        """Wait for its end, which somebody else asked for; return our exit code."""
        code = self.process.wait()
        if code != 0:
            raise self.epitaph(code)
        say("The operator was ended.")
        return 0

    def stop(self) -> None:
        """End it in order: its engines first."""
        if self.process.poll() is not None:
            return
        with err.status("Ending the engines"):
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT)
                say("Ended.")
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                say(f"[yellow]Still ending (pid {self.process.pid}); `ebbtide down` waits for it. Log: {self.log}[/]")


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Treat SIGTERM and a closed terminal as Ctrl-C: the engines must not outlive us."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(child: Child, timeout: float) -> None:
    source = Source(child.connection())
    deadline = time.monotonic() + timeout
    try:
        with Watching() as show:
            while True:
                servers = source.servers()
                show(servers)
                if servers and all(server.ready for server in servers):
                    return
                child.check()
                if time.monotonic() > deadline:
                    raise _late(servers, timeout)
                time.sleep(0.25)
    finally:
        source.close()


class Watching:
    """Shows every member while it starts: a table that changes, or a line for each change without a terminal."""

    def __init__(self) -> None:
        self._live = Live(console=err, transient=True, refresh_per_second=4) if err.is_terminal else None
        self._told: dict[str, str] = {}

    def __enter__(self) -> Watching:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, servers: list[ServerState]) -> None:
        """Show how the servers stand."""
        if self._live:
            self._live.update(members(servers))
            return
        for name, text in _lines(servers):
            if self._told.get(name) != text:
                self._told[name] = text
                say(f"{name}: {text}")


def _lines(servers: list[ServerState]) -> Iterator[tuple[str, str]]:
    for server in servers:
        for member in server.members:
            failed = member.last_error if not member.admission else None
            # What the engine itself said last is often the reason: a taken port, a flag that it does not know.
            error = f" ({failed.message}; `ebbtide logs {server.name}` says more)" if failed else ""
            yield member.name, f"{member.phase}{error}"


def _late(servers: list[ServerState], timeout: float) -> EbbtideError:
    waiting = next((server for server in servers if not server.ready), None)
    where = f"{waiting.name}: {waiting.reason}: {waiting.message}" if waiting else "no server is known"
    action = f"`ebbtide logs {waiting.name}` says why; --timeout waits longer." if waiting else "Read operator.log."
    return EbbtideError(ErrorCode.PHASE_DEADLINE, f"not all serve after {timeout:g} s; {where}", next_action=action)


def _announce(servers: Sequence[InferenceServer], child: Child, detach: bool) -> None:
    names = {server.name: server.served_name for server in servers}
    source = Source(child.connection())
    try:
        states = source.servers()
    finally:
        source.close()
    made = table("Server", "Model", "Group", "State", "URL")
    for state in states:
        for member in state.members:
            made.add_row(state.name, names.get(state.name, state.model), state.group, str(member.phase), member.url)
    out.print(made)
    serving = next((state for state in states if state.serving and state.members), None)
    if serving:
        out.print(_curl(serving.members[0].url, names.get(serving.name, serving.name)), soft_wrap=True)
        out.print(f"ebbtide lend {serving.group} -- COMMAND", soft_wrap=True)
    say("It runs on; `ebbtide down` ends it." if detach else "[bold]Ctrl-C[/] ends it.")


def _curl(url: str, model: str) -> str:
    body = f'{{"model": "{model}", "prompt": "ebb and flow", "max_tokens": 8}}'
    return f"curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"
