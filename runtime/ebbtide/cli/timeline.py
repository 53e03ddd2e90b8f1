"""`ebbtide timeline`: who owned a group's devices and where its members were, in the terminal or as a picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from rich.console import Group as Rows
from rich.table import Table
from rich.text import Text

from .console import out, say
from .lanes import Chart, Lane, Span, chart
from .picture import svg
from .status import Source, connection_of
from .tables import table

WIDTH = 60
"""Columns of a lane."""


@dataclass(frozen=True)
class Asked:
    """What was typed. `last` is in seconds."""

    group: str
    svg: Path | None = None
    last: float | None = None
    as_json: bool = False


def timeline(asked: Asked, home: Path | None) -> int:
    """Show a group over time."""
    source = Source(connection_of(home))
    try:
        found = source.timeline(asked.group)
    finally:
        source.close()
    if asked.as_json:
        out.print_json(json.dumps(found.wire()))
        return 0
    drawn = chart(found, asked.last)
    if asked.svg:
        _write(asked.svg, svg(drawn, f"Group {found.group}, as observed until {found.now}"))
    else:
        out.print(Rows(bars(drawn), Text(), changes(drawn)))
    return 0


def _write(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as problem:
        message = f"the picture cannot be written to {path} ({problem.strerror})"
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, next_action="Name another file.") from problem
    say(f"Written to {path}.")


def bars(drawn: Chart) -> Table:
    """Return every lane as a bar, the oldest at the left."""
    made = table("", f"{_clock(drawn.begin)} to {_clock(drawn.end)}")
    for lane in drawn.lanes:
        made.add_row(lane.name, _bar(drawn, lane))
    return made


def _bar(drawn: Chart, lane: Lane) -> Text:
    bar = Text()
    for column in range(WIDTH):
        left = drawn.begin + (drawn.end - drawn.begin) * column / WIDTH
        right = left + (drawn.end - drawn.begin) / WIDTH
        span = _longest(lane, left, right)
        bar.append("█" if span else " ", style=span.style if span else "")
    return bar


def _longest(lane: Lane, left: float, right: float) -> Span | None:
    """Return what a column shows: what took most of its time."""
    inside = [span for span in lane.spans if span.begin < right and span.end > left]
    return max(inside, key=lambda span: min(span.end, right) - max(span.begin, left), default=None)


def changes(drawn: Chart) -> Table:
    """Return everything that was seen, in order, with how long it lasted."""
    made = table("From (UTC)", "For", "Of", "", right=("For",))
    seen = [(span, lane.name) for lane in drawn.lanes for span in lane.spans]
    for span, name in sorted(seen, key=lambda pair: pair[0].begin):
        made.add_row(_clock(span.begin), f"{span.end - span.begin:.1f} s", name, Text(span.text, style=span.style))
    return made


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")
