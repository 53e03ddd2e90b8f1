"""`ebbtide why` and `ebbtide timeline`: what is printed and drawn of what the gateway tells."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from ebbtide.cli import timeline as timeline_command
from ebbtide.cli import why as why_command
from ebbtide.cli.lanes import chart
from ebbtide.cli.picture import svg
from ebbtide.cli.run import FAILED, USAGE, run
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import LeaseStage, MemberAim, Obstacle, Ownership, ServerWhy, Sighting, Timeline
from rich.console import Console

SVG = "{http://www.w3.org/2000/svg}"


def at(second: float) -> str:
    return f"2026-01-01T12:00:{second:06.3f}Z"


def owned(second: float, owner: str, epoch: int, stage: LeaseStage | None = None) -> Ownership:
    return Ownership(at=at(second), owner=owner, epoch=epoch, stage=stage, holder="me" if stage else "")


FOUND = Timeline(
    group="actor",
    now=at(20),
    ownership=[
        owned(0, "engine", 1),
        owned(4, "engine", 2, LeaseStage.GRANTED),
        owned(5, "engine", 2, LeaseStage.LENDING),
        owned(6, "<me> & co", 2, LeaseStage.LENT),
        owned(16, "engine", 3),
    ],
    members=[
        Sighting(at=at(0), member="chat-0", phase="Running", version=7),
        Sighting(at=at(5.5), member="chat-0", phase="Asleep", version=7),
        Sighting(at=at(2), member="chat-1", phase="NoAnswer"),
        Sighting(at=at(17), member="chat-0", phase="Running", version=8),
    ],
)


def shown(made: object) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(made)
        return console.export_text()


# Lanes


def test_spans_end_where_the_next_one_begins_and_the_last_one_now() -> None:
    drawn = chart(FOUND)
    assert [lane.name for lane in drawn.lanes] == ["owner", "chat-0", "chat-1"]
    assert drawn.end - drawn.begin == pytest.approx(20)
    spans = [(round(s.begin - drawn.begin, 3), round(s.end - drawn.begin, 3), s.kind) for s in drawn.lanes[0].spans]
    assert spans == [
        (0, 4, "engine"),
        (4, 5, "engine"),
        (5, 6, "Lending"),
        (6, 16, "Lent"),
        (16, 20, "engine"),
    ]
    assert [span.kind for span in drawn.lanes[1].spans] == ["Running", "Asleep", "Running"]
    assert drawn.lanes[0].spans[2].text == "engine, epoch 2, Lending by me"
    assert drawn.lanes[1].spans[2].text == "Running, version 8"


def test_only_the_last_seconds() -> None:
    drawn = chart(FOUND, last=5)
    assert drawn.end - drawn.begin == pytest.approx(5)
    assert [span.kind for span in drawn.lanes[0].spans] == ["Lent", "engine"]
    assert all(span.begin >= drawn.begin for lane in drawn.lanes for span in lane.spans)


def test_a_group_that_was_just_seen_has_a_width() -> None:
    drawn = chart(Timeline(group="actor", now=at(1), ownership=[owned(1, "engine", 1)]))
    assert drawn.end > drawn.begin
    assert [span.kind for span in drawn.lanes[0].spans] == ["engine"]
    assert Xml.fromstring(svg(drawn, "new")).tag == f"{SVG}svg"
    assert chart(Timeline(group="actor", now=at(1))).lanes[0].spans == ()


# The picture


def test_the_picture_has_every_span_to_scale_and_says_what_it_is() -> None:
    drawn = chart(FOUND)
    root = Xml.fromstring(svg(drawn, "Group actor"))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    assert len(bars) == sum(len(lane.spans) for lane in drawn.lanes)
    lent = next(bar for bar in bars if "Lent" in (bar.findtext(f"{SVG}title") or ""))
    assert lent.findtext(f"{SVG}title") == "<me> & co, epoch 2, Lent by me: 12:00:06Z to 12:00:16Z"
    whole = sum(float(bar.get("width", 0)) for bar in bars[:5])
    assert float(lent.get("width", 0)) / whole == pytest.approx(0.5, abs=0.01)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"Group actor", "owner", "chat-0", "chat-1", "Lent", "NoAnswer", "12:00:00Z", "12:00:20Z"} <= texts


def test_what_was_short_is_still_seen_in_the_picture() -> None:
    flash = Sighting(at=at(10), member="chat-0", phase="Draining")
    after = Sighting(at=at(10.001), member="chat-0", phase="Suspending")
    root = Xml.fromstring(svg(chart(FOUND.model_copy(update={"members": [flash, after]})), "x"))
    draining = [bar for bar in root.iter(f"{SVG}rect") if "Draining" in (bar.findtext(f"{SVG}title") or "")]
    assert [float(bar.get("width", 0)) for bar in draining] == [1.0]


# The terminal


def test_bars_show_what_took_most_of_each_column() -> None:
    text = shown(timeline_command.bars(chart(FOUND)))
    lanes = {line.split()[0]: line for line in text.splitlines() if "█" in line}
    assert set(lanes) == {"owner", "chat-0", "chat-1"}
    assert lanes["owner"].count("█") == timeline_command.WIDTH
    assert lanes["chat-1"].count("█") == pytest.approx(timeline_command.WIDTH * 0.9, abs=1)
    assert "12:00:00 to 12:00:20" in text


def test_changes_are_listed_in_the_order_in_which_they_were_seen() -> None:
    lines = shown(timeline_command.changes(chart(FOUND))).splitlines()[1:]
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert any("10.0 s" in line and "Lent by me" in line for line in lines)
    assert len(lines) == 9


# why


HEALTHY = ServerWhy(name="chat", group="actor", settled=True, wants="2 of 2 replicas serve.", since=at(0))
WAITING = ServerWhy(
    name="chat",
    group="actor",
    settled=False,
    wants="2 of 2 members shall serve.",
    obstacles=[
        Obstacle(
            subject="cpu0", reason="DeviceNotFree", message="700 [MiB] are held.", next_action="Free it.", since=at(1)
        )
    ],
    members=[
        MemberAim(name="chat-0", wants="serve", next="wake-weights", phase=Phase.ASLEEP, since=at(1)),
        MemberAim(name="chat-1", wants="serve", next="nothing before it answers", next_action="See its log."),
    ],
)


def plain(found: ServerWhy) -> list[str]:
    return [shown_line.strip() for shown_line in (shown(line) for line in why_command.lines(found))]


def test_a_healthy_server_is_one_line() -> None:
    (line,) = plain(HEALTHY)
    assert line.startswith("chat is as asked: 2 of 2 replicas serve. (for ")


def test_an_obstacle_is_told_with_its_time_and_what_to_do() -> None:
    wanted, obstacle, advice, first, second = plain(WAITING)
    assert wanted == "Wanted: 2 of 2 members shall serve."
    assert obstacle.startswith("In the way (DeviceNotFree): 700 [MiB] are held. (for ")
    assert advice == "What to do: Free it."
    assert first.startswith("chat-0 (Asleep (for ")
    assert first.endswith("shall serve; next: wake-weights.")
    assert second == "chat-1 (its agent does not answer) shall serve; next: nothing before it answers. See its log."


def test_a_server_on_its_way_needs_nobody() -> None:
    assert "Nothing is in the way: it is on its way there." in plain(WAITING.model_copy(update={"obstacles": []}))


# What is typed


class Told:
    """A gateway that tells this."""

    def __init__(self, _connection: object) -> None:
        self.closed = False

    def why(self, server: str) -> ServerWhy:
        if server != "chat":
            raise EbbtideError(ErrorCode.NOT_FOUND, f"there is no server {server}")
        return HEALTHY

    def timeline(self, group: str) -> Timeline:
        return FOUND

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (why_command, timeline_command):
        monkeypatch.setattr(module, "Source", Told)
        monkeypatch.setattr(module, "connection_of", lambda home: home)


def test_why_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", "chat"]) == 0
    assert "chat is as asked" in capsys.readouterr().out
    assert run(["why", "chat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settled"] is True
    assert run(["why", "chatty"]) == FAILED
    assert run(["why"]) == USAGE


def test_a_timeline_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["timeline", "actor", "--last", "5s"]) == 0
    assert "owner" in capsys.readouterr().out
    assert run(["timeline", "actor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["group"] == "actor"
    picture = tmp_path / "actor.svg"
    assert run(["timeline", "actor", "--svg", str(picture)]) == 0
    assert Xml.parse(picture).getroot().tag == f"{SVG}svg"
    assert run(["timeline", "actor", "--svg", str(tmp_path / "no" / "where.svg")]) == USAGE
    assert "cannot be written" in capsys.readouterr().err
