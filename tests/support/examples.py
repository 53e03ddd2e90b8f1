"""The programs of examples/, as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def example(name: str) -> Iterator[ModuleType]:
    """Import an example, and what it imports of its neighbours, for a while."""
    import torch

    # Small tensors and neighbours: two threads would mostly wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
        torch.set_num_threads(threads)
