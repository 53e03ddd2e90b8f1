"""What was computed with other weights is forgotten: every cache there is, and a refusal is not taken for a yes."""

from __future__ import annotations

import asyncio

import pytest
from ebbtide_runtime.engine import compat


class Caches:
    """The part of vLLM's client that forgets. `in_use`: requests still hold blocks of the prefix cache."""

    def __init__(self, *, in_use: bool = False) -> None:
        self.in_use = in_use
        self.emptied: list[str] = []

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        if self.in_use:
            return False
        self.emptied.append("prefix")
        self.emptied += ["requests"] * reset_running_requests + ["connector"] * reset_connector
        return True

    async def reset_mm_cache(self) -> None:
        self.emptied.append("inputs")

    async def reset_encoder_cache(self) -> None:
        self.emptied.append("encoder")


@pytest.mark.parametrize("cache", ["prefix", "requests", "connector", "inputs", "encoder"])
def test_every_cache_is_emptied(cache: str) -> None:
    client = Caches()
    assert asyncio.run(compat.reset_caches(client))
    assert client.emptied.count(cache) == 1


def test_a_prefix_cache_that_is_in_use_was_not_emptied() -> None:
    """vLLM's own route answers 200 either way."""
    assert not asyncio.run(compat.reset_caches(Caches(in_use=True)))
