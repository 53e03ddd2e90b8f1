"""Tiny models for tests and benches, made once into build/models/ and the same on every machine."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "models"
# A process of its own: torch and transformers take 300 MiB and warn at import, which pytest turns into errors.
_MAKE = "import sys; from ebbtide.tinymodel import make; make(sys.argv[1], hidden={}, layers={}, seed={})"


def tiny(seed: int = 0) -> Path:
    """Return the folder of a Llama of 5 million parameters. Another seed gives other weights of the same shapes."""
    return _made("tiny", 256, 8, seed)


def medium(seed: int = 0) -> Path:
    """Return the folder of a Llama with 220 MiB of weights: enough for memory to be measured by."""
    return _made("medium", 1024, 12, seed)


def _made(name: str, hidden: int, layers: int, seed: int) -> Path:
    path = FOLDER / f"{name}-{seed}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-c", _MAKE.format(hidden, layers, seed), str(path)], check=True)
    return path
