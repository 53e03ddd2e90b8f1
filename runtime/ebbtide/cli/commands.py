"""What can be typed. Each command says what it takes and calls the module that does it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from ..client.borrowing import Terms
from ..client.connection import home_folder
from . import doctor as doctor_command
from . import down as down_command
from . import lend as lend_command
from . import logs as logs_command
from . import proxy as proxy_command
from . import status as status_command
from . import timeline as timeline_command
from . import up as up_command
from . import why as why_command
from .console import out, seconds_of


@dataclass
class Settings:
    """What holds for every command."""

    debug: bool = False


settings = Settings()
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Lend the memory of inference engines to trainers, and report only what was measured.",
)


def _duration(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem


Home = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads it at run time
    typer.Option("--home", help="Where the operator keeps what survives. [$EBBTIDE_HOME, else ./.ebbtide]"),
]
Time = Annotated[float, typer.Option(parser=_duration, metavar="TIME", help="How long it may take: 90, 30s, 5m.")]


@app.callback()
def everything(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    """Lend the memory of inference engines to trainers, and report only what was measured."""
    settings.debug = debug


@app.command()
def up(
    file: Annotated[
        list[Path], typer.Option("-f", "--file", help="A YAML file with InferenceServers; may be repeated.")
    ],
    home: Home = None,
    port: Annotated[int, typer.Option(help="The gateway's port on 127.0.0.1; 0 takes a free one.")] = 7411,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all serve, and leave them running.")
    ] = False,
    timeout: Time = "15m",  # type: ignore[assignment]
) -> None:
    """Run servers on this machine, and wait until they serve. Ctrl-C ends them."""
    raise typer.Exit(up_command.up(file, home or home_folder(), port, detach=detach, timeout=timeout))


@app.command()
def down(
    home: Home = None,
    timeout: Time = "60s",  # type: ignore[assignment]
) -> None:
    """End the operator of this home, its engines, and what a crash left of them."""
    raise typer.Exit(down_command.down(home or home_folder(), timeout=timeout))


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Home = None,
) -> None:
    """Show servers, groups and devices, as measured."""
    raise typer.Exit(status_command.status(home, watch=watch, as_json=json))


@app.command()
def why(
    server: Annotated[str, typer.Argument(help="A server.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Home = None,
) -> None:
    """Explain a server: what is wanted, what is in the way, since when, and what to do."""
    raise typer.Exit(why_command.why(server, home, as_json=json))


@app.command()
def timeline(
    group: Annotated[str, typer.Argument(help="A group.")],
    svg: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Write a picture there instead.")] = None,  # noqa: UP045
    last: Annotated[
        Optional[float], typer.Option(parser=_duration, metavar="TIME", help="Only what is this young: 90, 30s, 5m.")  # noqa: UP045
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Home = None,
) -> None:
    """Show who owned a group's devices and where its members were, over time, as observed."""
    asked = timeline_command.Asked(group, svg=svg, last=last, as_json=json)
    raise typer.Exit(timeline_command.timeline(asked, home))


@app.command(context_settings={"ignore_unknown_options": True})
def lend(
    group: Annotated[str, typer.Argument(help="The group whose memory is borrowed.")],
    command: Annotated[Optional[list[str]], typer.Argument(help="After --: what runs with the memory.")] = None,  # noqa: UP045
    for_: Annotated[
        Optional[float], typer.Option("--for", parser=_duration, metavar="TIME", help="Hold it this long: 30s, 5m.")  # noqa: UP045
    ] = None,
    need: Annotated[Optional[float], typer.Option(metavar="MIB", help="MiB that must be free per device.")] = None,  # noqa: UP045
    ttl: Annotated[float, typer.Option(parser=_duration, metavar="TIME", help="The lease's time to live.")] = "30s",  # type: ignore[assignment]
    home: Home = None,
) -> None:
    """Borrow a group's memory for a command, for a time, or until Enter; then give it back."""
    asked = lend_command.Asked(group, tuple(command or ()), hold=for_, need_mib=need, ttl=ttl)
    raise typer.Exit(lend_command.lend(asked, home))


@app.command()
def proxy(
    group: Annotated[str, typer.Argument(help="The group whose lease is taken for its clients.")],
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 takes a free one.")] = 7410,
    ttl: Annotated[float, typer.Option(parser=_duration, metavar="TIME", help="The lease's time to live.")] = "30s",  # type: ignore[assignment]
    patience: Annotated[
        float, typer.Option(parser=_duration, metavar="TIME", help="How long to wait in the group's queue.")
    ] = "1h",  # type: ignore[assignment]
    timeout: Time = "5m",  # type: ignore[assignment]
    holder: Annotated[str, typer.Option(help="What people see as the holder. [host and process]")] = "",
    pid: Annotated[Optional[int], typer.Option(help="The trainer's process here, whose memory is its own.")] = None,  # noqa: UP045
    home: Home = None,
) -> None:
    """Let clients that know no token, lease or epoch use a gateway: they call this port instead."""
    terms = Terms(group, holder=holder, pid=pid, ttl=ttl, patience=patience, timeout=timeout)
    raise typer.Exit(proxy_command.proxy(terms, port, home))


@app.command()
def logs(
    server: Annotated[str, typer.Argument(help="A server or one of its members.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are added, until Ctrl-C.")] = False,
    agent: Annotated[bool, typer.Option("--agent", help="The agent's log, not the engine's.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many lines from the end.")] = 100,
    home: Home = None,
) -> None:
    """Show what an engine or its agent wrote."""
    asked = logs_command.Asked(server, agent=agent, follow=follow, lines=lines)
    raise typer.Exit(logs_command.logs(asked, home or home_folder()))


@app.command()
def doctor(home: Home = None) -> None:
    """Check this machine, and say how to mend what is wrong."""
    raise typer.Exit(doctor_command.doctor(home or home_folder()))


@app.command()
def version() -> None:
    """Print the version."""
    from .. import __version__

    out.print(f"ebbtide {__version__}")
