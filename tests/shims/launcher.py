"""A launcher whose scripted engine takes its time, so that an answer which came too early is seen; and which lies.

`lies.json` in the member's home holds what goes wrong in the next call of a control route: {"sleep": "NOTHING"}.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support import scripted_launcher
from tests.support.fake_engine import FakeEngine, Lie
from tests.support.small_http import Answer, Request

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

    async def _handle(self, request: Request) -> Answer:
        if request.path == "/v1/models":
            return Answer(200, {"data": [{"id": self.config.served_name}]})
        if request.path != "/inference/v1/generate":
            return await super()._handle(request)
        gate = self._gate
        if gate is None or not gate.enter():
            return Answer(503, {"code": "DRAINING", "message": "closed"}, headers=(("Retry-After", "0"),))
        try:
            return Answer(200, {"choices": [await self._generate(request.body["sampling_params"]["max_tokens"])]})
        finally:
            gate.leave()

    async def _generate(self, count: int) -> dict[str, Any]:
        """Answer as vLLM's token-in-token-out route: tokens, their log-probabilities, and which version drew which."""
        aborted, drawn, spans = self._aborted, list[dict[str, Any]](), list[dict[str, Any]]()
        while len(drawn) < count and self._aborted == aborted:
            await asyncio.sleep(self.token_s)
            if self._frozen:
                continue
            version = str(min(rank.version for rank in self.fleet.ranks))
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": len(drawn), "end": 0})
            drawn.append({"token_id": random.randrange(3, 512), "logprob": -6.2})
            spans[-1]["end"] = len(drawn)
        reason = "length" if len(drawn) == count else "abort"
        return {"logprobs": {"content": drawn}, "weight_versions": spans, "finish_reason": reason}

    async def _stream(self, gate: Any, count: int) -> AsyncIterator[str]:
        version = min(rank.version for rank in self.fleet.ranks)
        yield f"{self.config.name} {version}\n"
        async for line in super()._stream(gate, count):
            yield line


if __name__ == "__main__":
    scripted_launcher.FakeEngine = SlowEngine  # type: ignore[misc]
    sys.exit(scripted_launcher.run(sys.argv[sys.argv.index("--member") + 1]))
