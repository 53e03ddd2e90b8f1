"""What `ebbtide[operator,runtime,cpu]` brings, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

OPERATOR = ("fastapi", "uvicorn", "psutil", "prometheus_client")
INSTALL = "pip install 'ebbtide[operator,runtime,cpu]'"


def missing(names: Iterable[str]) -> list[str]:
    """Return those that cannot be imported. Nothing is imported."""
    return [name for name in names if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
