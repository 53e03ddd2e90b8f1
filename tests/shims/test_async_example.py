"""examples/async_rl.py through the real proxy: frozen requests go on, ended ones are asked on, versions are known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ebbtide.tinymodel import make

from tests.shims.house import MEMBERS, ShimHouse
from tests.shims.sequences import serves
from tests.support import examples
from tests.support.polling import eventually


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with examples.example("async_rl") as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "tiny", layers=1)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ShimHouse]:
    made = ShimHouse(tmp_path_factory.mktemp("house"), model=model)
    try:
        made.open("--timeout", "20s", "--holder", "an example")
        yield made
    finally:
        made.close()


def test_it_trains_while_engines_sample(house: ShimHouse, example: ModuleType, model: Path) -> None:
    settings = example.Settings(samples=2, tokens=60, epochs=1)
    proxy, policy = example.Proxy(house.url), example.Policy(str(model), settings)
    prompts = [[7, number + 20, 300] for number in range(4)]
    with example.Samplers(proxy, prompts, settings) as samplers:
        steps = list(example.train(proxy, policy, samplers, steps=4, lag=2, batch=2))
    proxy.client.close()
    assert [step.version for step in steps] == [1, 2, 3, 4]
    assert house.versions() == [4, 4]
    assert sum(step.frozen for step in steps) > 0, "requests were in flight when the optimizer stepped, and went on"
    seen = {version for step in steps for version in step.versions}
    assert len(seen) >= 2, "tokens of several versions were trained on, each known as such"
    assert all(min(step.versions) >= step.version - 1 - 2 for step in steps), "none is older than was allowed"
    serves(house)


def test_a_completion_goes_on_over_an_update(
    house: ShimHouse, example: ModuleType, model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    proxy, drawn = example.Proxy(house.url), list[Any]()
    before = max(house.versions())
    thread = threading.Thread(target=lambda: drawn.append(proxy.draw([5, 6, 7], 800)))
    thread.start()
    eventually(lambda: any(house.page(name).inflight() for name in MEMBERS), 20)
    save_file(load_file(model / "model.safetensors"), tmp_path / "model.safetensors", {"format": "pt"})
    assert proxy.update(tmp_path, before + 1) == before + 1
    thread.join(60)
    proxy.client.close()
    (one,) = drawn
    assert len(one.tokens) == len(one.logprobs) == len(one.versions) == 800
    assert one.versions == sorted(one.versions)
    assert (one.versions[0], one.versions[-1]) == (before, before + 1)


def test_tokens_whose_version_is_not_known_are_no_sample(example: ModuleType) -> None:
    drawn = example.Drawn([1])
    content = [{"token_id": 4, "logprob": -1.0}, {"token_id": 5, "logprob": -2.0}]
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}]
    drawn.add({"logprobs": {"content": content}, "weight_versions": spans})
    assert (drawn.tokens, drawn.versions, drawn.oldest) == ([4, 5], [0, 3], 0)
    with pytest.raises(RuntimeError, match="versions for 2"):
        drawn.add({"logprobs": {"content": content}})
