"""From what was observed to lanes of spans, one lane for the owner and one for each member: pure, for any picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from ebbtide_api.verbs import LeaseStage, Ownership, Sighting, Timeline

STYLES = {
    "engine": ("#2e7d32", "green"),
    "Running": ("#2e7d32", "green"),
    "Asleep": ("#1565c0", "blue"),
    "Lent": ("#6a1b9a", "magenta"),
    "Faulted": ("#c62828", "red"),
    "Recovering": ("#e57373", "bright_red"),
    "OwnerLost": ("#c62828", "red"),
    "NoAnswer": ("#9e9e9e", "bright_black"),
    "Unknown": ("#9e9e9e", "bright_black"),
    "PendingDevice": ("#80cbc4", "cyan"),
    "Gone": ("#eeeeee", "black"),
}
MOVING = ("#f9a825", "yellow")
"""What is on its way from one to another: a lease that moves, a member between two states of rest."""


@dataclass(frozen=True)
class Span:
    """A stretch of one lane, in seconds since 1970. `kind` gives it its colour, `text` is for people."""

    begin: float
    end: float
    kind: str
    text: str

    @property
    def colour(self) -> str:
        """The colour on paper."""
        return STYLES.get(self.kind, MOVING)[0]

    @property
    def style(self) -> str:
        """The colour on a terminal."""
        return STYLES.get(self.kind, MOVING)[1]


@dataclass(frozen=True)
class Lane:
    """One row of a picture."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Chart:
    """All lanes, from `begin` to `end`."""

    begin: float
    end: float
    lanes: tuple[Lane, ...]


def chart(found: Timeline, last: float | None = None) -> Chart:
    """Return a timeline as lanes; with `last`, only its last so many seconds."""
    end = _moment(found.now)
    lanes = [Lane("owner", _spans([_owned(entry, end) for entry in found.ownership]))]
    for name in sorted({entry.member for entry in found.members}):
        lanes.append(Lane(name, _spans([_seen(entry, end) for entry in found.members if entry.member == name])))
    begins = [span.begin for lane in lanes for span in lane.spans]
    begin = max(min(begins, default=end), end - last if last else 0.0)
    # A picture has a width, even if everything happened just now.
    return Chart(begin, max(end, begin + 0.001), tuple(replace(lane, spans=_from(lane, begin)) for lane in lanes))


def _from(lane: Lane, begin: float) -> tuple[Span, ...]:
    return tuple(
        replace(span, begin=max(span.begin, begin)) for span in lane.spans if span.end > begin or span.begin >= begin
    )


def _spans(entries: Sequence[Span]) -> tuple[Span, ...]:
    """Let every span end where the next one begins; the last one ends now."""
    followed = pairwise(entries)
    return (*(replace(span, end=max(span.begin, after.begin)) for span, after in followed), *entries[-1:])


def _owned(entry: Ownership, end: float) -> Span:
    moving = entry.stage is not None and entry.stage is not LeaseStage.GRANTED
    kind = entry.stage.value if moving and entry.stage else entry.owner
    lease = f", {entry.stage} by {entry.holder}" if entry.stage else ""
    return Span(_moment(entry.at), end, kind, f"{entry.owner}, epoch {entry.epoch}{lease}")


def _seen(entry: Sighting, end: float) -> Span:
    version = f", version {entry.version}" if entry.version else ""
    return Span(_moment(entry.at), end, entry.phase, f"{entry.phase}{version}")


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
