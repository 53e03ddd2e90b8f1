"""What an engine uses of its device, measured from outside it. Standard library only; bytes throughout.

CPU: anonymous memory (the arena's pages are), shared pages by their share: `Pss_Anon` of /proc/PID/smaps_rollup.
File-backed pages are left out, they move with the neighbours. CUDA: what NVML says that the processes hold.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

PROC = Path("/proc")
_SIDE_BY_SIDE = 4


class Reader(Protocol):
    """Measures one kind of device."""

    def used(self, pids: Sequence[int]) -> int:
        """Return the bytes that the processes hold. A process that ended meanwhile holds none."""


class AnonymousMemory:
    """The CPU as a device."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def used(self, pids: Sequence[int]) -> int:
        """Sum `Pss_Anon` over the processes, side by side: the kernel walks every page of each."""
        if len(pids) < 2:
            return sum(self._one(pid) for pid in pids)
        with ThreadPoolExecutor(min(len(pids), _SIDE_BY_SIDE)) as threads:
            return sum(threads.map(self._one, pids))

    def _one(self, pid: int) -> int:
        try:
            return pss_anon((self._proc / str(pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return 0


def pss_anon(rollup: str) -> int:
    """Return `Pss_Anon` of a smaps_rollup in bytes; 0 for a process without memory (a zombie). Raises ValueError."""
    if not rollup.strip():
        return 0
    for line in rollup.splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise ValueError("smaps_rollup has no Pss_Anon: Ebbtide needs Linux 5.9 or later")


class Nvml(Protocol):
    """The part of the `pynvml` module that is used here."""

    def nvmlInit(self) -> None:  # noqa: N802
        """Load the driver's library."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Count devices."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        """Open a device."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:  # noqa: N802
        """Open a device."""

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> Iterable[Any]:  # noqa: N802
        """List `{pid, usedGpuMemory}`; the memory is None where the driver does not say."""

    def nvmlDeviceGetMemoryInfo(self, device: Any) -> Any:  # noqa: N802
        """Return `{used, free, total}`."""


def nvml() -> Nvml:
    """Return NVML's bindings: the installed ones, else the file that vLLM brings along. Raises ImportError.

    The file is loaded by itself: to import vLLM would take torch and a gigabyte into a small process.
    """
    places = ((found, importlib.util.find_spec(found)) for found in ("pynvml", "vllm"))
    origins = {name: Path(spec.origin) for name, spec in places if spec is not None and spec.origin}
    file = origins.get("pynvml") or origins.get("vllm", Path()).parent / "third_party/pynvml.py"
    if not file.is_file():
        raise ImportError("NVML's Python bindings are missing: install nvidia-ml-py")
    bindings: Nvml = _load("ebbtide_pynvml", file)
    return bindings


def _load(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    # Registered first: the module looks itself up while it runs.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CudaMemory:
    """CUDA devices. `visible` is CUDA_VISIBLE_DEVICES: indices or UUIDs; absent means all."""

    def __init__(self, nvml: Nvml, visible: str | None = None) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._devices = [self._open(name) for name in self._names(visible)]

    def _names(self, visible: str | None) -> list[str]:
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _open(self, name: str) -> Any:
        by_index = name.isdigit()
        return (
            self._nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else self._nvml.nvmlDeviceGetHandleByUUID(name)
        )

    def used(self, pids: Sequence[int]) -> int:
        """Sum over the devices."""
        return sum(self._on(device, frozenset(pids)) for device in self._devices)

    def _on(self, device: Any, pids: frozenset[int]) -> int:
        holders = list(self._nvml.nvmlDeviceGetComputeRunningProcesses(device))
        ours = [each.usedGpuMemory for each in holders if each.pid in pids]
        if all(held is not None for held in ours) and (ours or not holders):
            return sum(ours)
        # In a container the driver names processes by other ids, or not at all: then all that is used counts as ours.
        return int(self._nvml.nvmlDeviceGetMemoryInfo(device).used) if pids else 0


def folder(*paths: str | os.PathLike[str]) -> int:
    """Return the bytes that the files of folders take, with their subfolders; 0 for one that is not there.

    A file with two names is counted once: what was received is also the member's own copy, once it is checked.
    """
    seen: set[int] = set()
    return sum(_folder(path, seen) for path in paths)


def _folder(path: str | os.PathLike[str], seen: set[int]) -> int:
    try:
        with os.scandir(path) as entries:
            return sum(_entry(entry, seen) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _entry(entry: os.DirEntry[str], seen: set[int]) -> int:
    try:
        if entry.is_dir(follow_symlinks=False):
            return _folder(entry.path, seen)
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if found.st_nlink > 1:
        if found.st_ino in seen:
            return 0
        seen.add(found.st_ino)
    return found.st_blocks * 512
