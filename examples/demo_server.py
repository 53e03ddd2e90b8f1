"""The demo's own operator: `ebbtide up` and `ebbtide down`, in a home that nobody else uses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from ebbtide import Connection, EbbtideError, ErrorCode
from ebbtide.cli import processes
from ebbtide.client.connection import from_home
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "examples/local/server.yaml"
START, END = 600, 90


class Local:
    """An operator with the example's server. What an earlier run left is ended first."""

    def __init__(self, engine: str) -> None:
        self.home = ROOT / ".ebbtide/demo"
        self._engine = engine
        self._console = Console(stderr=True, highlight=False)

    def start(self) -> None:
        """Start, and return when the engine serves. Raises ENGINE_FAULTED with what `ebbtide up` said."""
        self.stop()
        command = ["up", "-f", str(self._spec()), "--port", "0", "--detach", "--timeout", f"{START}s"]
        with self._console.status("Starting the engine: ebbtide up -f examples/local/server.yaml"):
            code, said = self._ebbtide(*command)
        if code != 0:
            message = f"`ebbtide up` failed: {said}"
            action = f"EBBTIDE_HOME={self.home} ebbtide logs tiny; ebbtide doctor"
            raise EbbtideError(ErrorCode.ENGINE_FAULTED, message, next_action=action)

    def stop(self) -> None:
        """End everything. Does nothing if nothing runs."""
        with self._console.status("Ending the engine: ebbtide down"):
            code, said = self._ebbtide("down", "--timeout", f"{END}s")
        if code != 0:
            raise EbbtideError(ErrorCode.PHASE_DEADLINE, f"`ebbtide down` failed: {said}")

    def connection(self) -> Connection:
        """Return the gateway."""
        return from_home(self.home)

    def memory(self) -> Path:
        """Return the operator's memory-backed folder."""
        return Path(json.loads((self.home / "operator.json").read_text())["memory"])

    def processes(self) -> list[int]:
        """Return the processes of engines and agents that live."""
        return processes.of_members(self.home)

    def _ebbtide(self, *arguments: str) -> tuple[int, str]:
        """Run a command of ours to its end, even if we are interrupted: it must not be left half done."""
        command = [sys.executable, "-m", "ebbtide", *arguments, "--home", str(self.home)]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                _, said = process.communicate()
            except KeyboardInterrupt:
                if arguments[0] == "up":
                    process.send_signal(signal.SIGINT)
                process.communicate()
                raise
        return process.returncode, said.strip().splitlines()[-1] if said.strip() else ""

    def _spec(self) -> Path:
        """Return the example's file, or a variant: for a GPU, or because somebody else has its port."""
        spec: dict[str, Any] = yaml.safe_load(SPEC.read_text())
        port = spec["spec"]["engine"].get("port", 8000)
        if self._engine == "cpu" and _is_free(port):
            return SPEC
        spec["spec"]["model"]["source"] = str((SPEC.parent / spec["spec"]["model"]["source"]).resolve())
        spec["spec"]["engine"]["port"] = port if _is_free(port) else _free_port()
        if self._engine == "cuda":
            spec["spec"]["colocation"]["devices"] = {"env": "CUDA_VISIBLE_DEVICES"}
            spec["spec"]["engine"]["extraArgs"].append("--gpu-memory-utilization=0.5")
            spec["spec"]["engine"].pop("env", None)
        self.home.mkdir(parents=True, exist_ok=True)
        variant = self.home / "server.yaml"
        variant.write_text(yaml.safe_dump(spec))
        return variant


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
