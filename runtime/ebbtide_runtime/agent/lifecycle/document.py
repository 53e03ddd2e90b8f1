"""docs/lifecycle.md, from the table: `python -m ebbtide_runtime.agent.lifecycle.document > docs/lifecycle.md`."""

from __future__ import annotations

from collections.abc import Iterator

from ebbtide_api.errors import ErrorCode
from ebbtide_api.state import Phase

from .events import HAPPENINGS, VERBS, Decision, Derive, Event, Go, Impossible, Noop, Refuse, Start, Stay
from .table import TABLE, TERMINAL, decide

_HEAD = """\
# The lifecycle of one member

Generated from the table in `runtime/ebbtide_runtime/agent/lifecycle/table.py` by
`python -m ebbtide_runtime.agent.lifecycle.document`; a test fails if it is stale.

Requests are admitted in `Running` and nowhere else: the gate is closed before the phase changes, and opened after.
A member may stay for ever in {terminal}. Every other phase has a
deadline, kept by a thread that shares neither event loop nor connection with the calls that it watches; when it passes,
what the engine did is unknown, and the engine is ended and started again.

A failed operation leaves a member at rest: in `Suspending` after `RELEASE_INCOMPLETE` (the engine was told to sleep,
and its memory was not measured free: `wake-weights` brings it back, `sleep` tries again), in `Verifying` after
`CANARY_FAILED`, and where it was after anything that was refused before the engine was touched.
"""

_DIAGRAM = """
## The picture

`any` stands for every phase that has an engine.

```mermaid
stateDiagram-v2
{lines}
```
"""

_VERBS = """
## Verbs

`-> X`: accepted, and the operation begins in `X`. `noop`: the goal is true already, 200. Anything else is the code of
the refusal (`illegal` is `ILLEGAL_TRANSITION`). While an operation runs every other call gets `OPERATION_IN_PROGRESS`.
Beside the table: the goals of `begin-update` and `commit-update` count as true for the version that is loaded or
committed; `wake-kv` and `resume` get `WEIGHTS_NOT_COMMITTED` wherever the weights are discarded, partial or unknown.

"""

_HAPPENINGS = """
## Events

`X`: the member moves to `X`. `derive`: to what `derive()` makes of the observation. `stays`: old news. Empty:
impossible there; an agent that sees it fails its operation as `INTERNAL` and moves nothing.

"""


def render() -> str:
    """Return the document."""
    terminal = sorted(f"`{phase}`" for phase in TERMINAL)
    head = _HEAD.format(terminal=f"{', '.join(terminal[:-1])} and {terminal[-1]}")
    diagram = _DIAGRAM.format(lines="\n".join(f"    {line}" for line in _edges()))
    return "".join([head, diagram, _VERBS, _matrix(VERBS), _HAPPENINGS, _matrix(HAPPENINGS)])


_EVERYWHERE = frozenset({Event.FAULT, Event.ENGINE_DIED, Event.DEADLINE, Event.BOOTED})


def _edges() -> Iterator[str]:
    yield "[*] --> Unknown: agent starts"
    yield "Unknown --> any: derived"
    merged: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, event), decision in TABLE.items():
        if isinstance(decision, Start | Go) and event not in _EVERYWHERE and decision.phase is not phase:
            merged.setdefault((phase, decision.phase), []).append(event.value)
    for (source, target), events in merged.items():
        yield f"{source} --> {target}: {', '.join(events)}"
    yield "any --> Faulted: fault, engine died, deadline"
    yield "any --> PendingDevice: launcher booted"


def _matrix(events: frozenset[Event]) -> str:
    columns = [event for event in Event if event in events]
    rows = [["phase", *(event.value for event in columns)], ["---"] * (len(columns) + 1)]
    rows += [[f"`{phase}`", *(_cell(decide(phase, event)) for event in columns)] for phase in Phase]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(decision: Decision) -> str:
    match decision:
        case Start(phase):
            return f"-> {phase}"
        case Go(phase):
            return f"{phase}"
        case Refuse(ErrorCode.ILLEGAL_TRANSITION):
            return "illegal"
        case Refuse(code):
            return code.value
        case Noop():
            return "noop"
        case Derive():
            return "derive"
        case Stay():
            return "stays"
        case Impossible():
            return ""


if __name__ == "__main__":
    print(render(), end="")
