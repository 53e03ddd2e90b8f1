"""`ebbtide why`: the planner's own reasons, in sentences."""

from __future__ import annotations

import json
from pathlib import Path

from ebbtide_api.verbs import MemberAim, ServerWhy
from rich.markup import escape

from .console import out
from .status import Source, connection_of
from .tables import age


def why(server: str, home: Path | None, *, as_json: bool) -> int:
    """Explain a server. Returns 0 whatever is said of it: only a question without an answer fails."""
    source = Source(connection_of(home))
    try:
        found = source.why(server)
    finally:
        source.close()
    if as_json:
        out.print_json(json.dumps(found.wire()))
        return 0
    for line in lines(found):
        out.print(line, soft_wrap=True)
    return 0


def lines(found: ServerWhy) -> list[str]:
    """Return an explanation, with rich's markup: one line when there is nothing to explain."""
    if found.settled:
        return [f"[green]{found.name} is as asked[/]: {escape(found.wants)}{_since(found.since)}"]
    said = [f"[bold]Wanted[/]: {escape(found.wants)}{_since(found.since)}"]
    for each in found.obstacles:
        said.append(f"[red]In the way[/] ({each.reason}): {escape(each.message)}{_since(each.since)}")
        said.append(f"  [yellow]What to do[/]: {escape(each.next_action)}")
    if not found.obstacles:
        said.append("Nothing is in the way: it is on its way there.")
    return [*said, *(_member(member) for member in found.members)]


def _member(member: MemberAim) -> str:
    phase = f"{member.phase}{_since(member.since)}" if member.phase else "its agent does not answer"
    line = f"  {member.name} ({phase}) shall {member.wants}; next: {member.next}."
    return escape(f"{line} {member.next_action}".rstrip())


def _since(since: str) -> str:
    return f" (for {age(since)})" if age(since) else ""
