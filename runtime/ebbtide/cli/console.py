"""How the command line speaks: results on stdout, everything else on stderr."""

from __future__ import annotations

import re

from ebbtide_api.errors import EbbtideError
from ebbtide_api.quantity import parse_duration
from rich.console import Console
from rich.markup import escape
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a line for people, with rich's markup."""
    err.print(text, soft_wrap=True)


def complain(error: EbbtideError) -> None:
    """Print an error as one line: its code, what, where and why, and what to do. Lists of faults take more lines."""
    head, *rest = error.message.rstrip().splitlines()
    end = "" if head.endswith((".", ":", "!", "?")) or rest else "."
    err.print(f"[bold red]{error.code}[/] [red]{escape(head)}{end}[/]", soft_wrap=True, end="")
    for line in rest:
        err.print(f"\n[red]{escape(line)}[/]", soft_wrap=True, end="")
    err.print(f"{chr(10) if rest else ' '}[yellow]{escape(error.next_action)}[/]", soft_wrap=True)


def seconds_of(text: str) -> float:
    """Return the seconds of `30`, `30s`, `5m`, `1h30m`. Raises ValueError."""
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else parse_duration(text) / 1e9


def mib(amount: float) -> str:
    """Return an amount of memory for people."""
    return f"{amount:,.0f} MiB"


def ms(amount: float) -> str:
    """Return a time for people, given milliseconds."""
    return f"{amount:,.0f} ms" if amount < 10_000 else f"{amount / 1000:,.1f} s"


def yes(good: bool, word: str = "") -> Text:
    """Return a mark, green or red."""
    return Text(word or ("yes" if good else "no"), style="green" if good else "red")
