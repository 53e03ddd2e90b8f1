"""A chart as SVG. Lanes, an axis of time, and a legend; the text of a span is shown where the pointer rests."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from .lanes import Chart, Lane, Span

WIDTH, LEFT, RIGHT, LANE, BAR, TOP = 1000, 150, 20, 28, 20, 44
TICKS = 6


def svg(drawn: Chart, title: str) -> str:
    """Return a picture that stands by itself."""
    height = TOP + LANE * len(drawn.lanes) + 70
    root = Xml.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=str(WIDTH),
        height=str(height),
        style="font-family: sans-serif; font-size: 12px",
    )
    # Not a style: viewers with a dark ground ignore that.
    Xml.SubElement(root, "rect", width="100%", height="100%", fill="white")
    _text(root, LEFT, 20, title, weight="bold")
    _axis(root, drawn, TOP + LANE * len(drawn.lanes))
    for index, lane in enumerate(drawn.lanes):
        _lane(root, drawn, lane, TOP + LANE * index)
    _legend(root, drawn, height - 20)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _lane(root: Xml.Element, drawn: Chart, lane: Lane, y: int) -> None:
    _text(root, LEFT - 8, y + 14, lane.name, anchor="end")
    for span in lane.spans:
        left, right = _x(drawn, span.begin), _x(drawn, span.end)
        # At least a hair wide: what was short was still seen.
        _bar(root, left, y, max(1.0, right - left), span)
        if right - left > 7 * len(span.kind):
            _text(root, left + 4, y + 14, span.kind, fill="white")


def _bar(root: Xml.Element, x: float, y: float, width: float, span: Span) -> None:
    drawn = Xml.SubElement(
        root, "rect", x=f"{x:.1f}", y=f"{y}", width=f"{width:.1f}", height=str(BAR), fill=span.colour
    )
    Xml.SubElement(drawn, "title").text = f"{span.text}: {_clock(span.begin)} to {_clock(span.end)}"


def _axis(root: Xml.Element, drawn: Chart, y: int) -> None:
    for tick in range(TICKS + 1):
        moment = drawn.begin + (drawn.end - drawn.begin) * tick / TICKS
        x = f"{_x(drawn, moment):.1f}"
        Xml.SubElement(root, "line", x1=x, x2=x, y1=str(TOP - 6), y2=str(y), stroke="#bbbbbb")
        _text(root, float(x), y + 16, _clock(moment), anchor="middle")


def _legend(root: Xml.Element, drawn: Chart, y: int) -> None:
    kinds = {span.kind: span for lane in drawn.lanes for span in lane.spans}
    x = float(LEFT)
    for kind, span in sorted(kinds.items()):
        Xml.SubElement(root, "rect", x=f"{x:.1f}", y=str(y - 10), width="10", height="10", fill=span.colour)
        _text(root, x + 14, y, kind)
        x += 30 + 7 * len(kind)


def _x(drawn: Chart, moment: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (moment - drawn.begin) / (drawn.end - drawn.begin)


def _text(
    root: Xml.Element, x: float, y: float, text: str, *, anchor: str = "start", weight: str = "", fill: str = "black"
) -> None:
    made = Xml.SubElement(root, "text", {"x": f"{x:.1f}", "y": f"{y}", "text-anchor": anchor, "fill": fill})
    if weight:
        made.set("font-weight", weight)
    made.text = text


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S") + "Z"
