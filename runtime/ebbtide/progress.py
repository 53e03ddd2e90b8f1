"""What a caller is told while it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ebbtide_api.state import Phase


class Stage(StrEnum):
    """The part of a borrow that is going on."""

    QUEUE = "queue"
    LEND = "lend"
    PUBLISH = "publish"
    RETURN = "return"


@dataclass(frozen=True)
class Progress:
    """One report: a stage, a sentence for people, and how far it is. `done` and `total` are bytes while publishing."""

    stage: Stage
    text: str
    phase: Phase | None = None
    done: int = 0
    total: int = 0
    seconds: float = 0.0


OnProgress = Callable[[Progress], None]


def silent(report: Progress) -> None:
    """Report to nobody."""
