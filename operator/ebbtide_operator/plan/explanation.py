"""Why a server is as it is, as plan() finds it: without times, as with findings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """Something in the way: of whom, in a word for programs, in a sentence, and what to do. No advice: it passes."""

    subject: str
    reason: str
    sentence: str
    advice: str = ""


@dataclass(frozen=True)
class Aim:
    """What one member is to reach, and what comes next."""

    member: str
    wants: str
    next: str
    advice: str = ""


@dataclass(frozen=True)
class Explanation:
    """Everything of one server. `settled`: it is as asked, and `wants` says how."""

    settled: bool
    wants: str
    obstacles: tuple[Obstacle, ...] = ()
    aims: tuple[Aim, ...] = ()
