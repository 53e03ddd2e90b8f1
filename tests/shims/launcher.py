"""A launcher whose scripted engine takes its time, so that an answer which came too early is seen; and which lies.

`lies.json` in the member's home holds what goes wrong in the next call of a control route: {"sleep": "NOTHING"}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support import scripted_launcher
from tests.support.fake_engine import FakeEngine, Lie
from tests.support.small_http import Answer

SLOW = {"sleep": 0.08, "wake": 0.08, "reload": 0.08, "commit": 0.08, "pause": 0.04, "resume": 0.04}
LIES = "lies.json"


class SlowEngine(FakeEngine):
    """Does everything late, and says with every completion who and which version answers."""

    def _take(self, verb: str) -> None:
        path = Path(self.config.home, LIES)
        told = json.loads(path.read_text()) if path.exists() else {}
        if lie := told.pop(verb, None):
            self.lie(verb, Lie[lie])
            path.write_text(json.dumps(told))

    async def _lied(self, verb: str, body: dict[str, Any]) -> Answer:
        self._take(verb)
        return await super()._lied(verb, body)

    async def _do(self, verb: str, body: dict[str, Any], *, only_first: bool) -> None:
        await asyncio.sleep(SLOW.get(verb, 0))
        await super()._do(verb, body, only_first=only_first)

    async def _stream(self, gate: Any, count: int) -> AsyncIterator[str]:
        version = min(rank.version for rank in self.fleet.ranks)
        yield f"{self.config.name} {version}\n"
        async for line in super()._stream(gate, count):
            yield line


if __name__ == "__main__":
    scripted_launcher.FakeEngine = SlowEngine  # type: ignore[misc]
    sys.exit(scripted_launcher.run(sys.argv[sys.argv.index("--member") + 1]))
