"""TRL's own client of a vLLM server: what it is told of a group."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.shims.house import ShimHouse
from tests.shims.sequences import asleep, serves

# TRL and what it brings warn of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def trl(house: ShimHouse) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.generation.vllm_client import VLLMClient
    made = VLLMClient(base_url=house.url)
    yield made
    made.session.close()


def test_it_finds_the_group_and_its_model(house: ShimHouse, trl: Any) -> None:
    assert trl.model == "chat"
    trl.check_server()
    trl.reset_prefix_cache()
    serves(house)


def test_a_group_that_sleeps_is_a_server_that_is_up(house: ShimHouse, trl: Any) -> None:
    assert trl.session.post(f"{house.url}/sleep").status_code == 200
    trl.check_server()
    asleep(house)


def test_its_way_of_weights_is_refused_before_anything_waits_for_it(house: ShimHouse, trl: Any) -> None:
    with pytest.raises(RuntimeError, match="has no weight-transfer engine"):
        trl.init_communicator()
    with pytest.raises(Exception, match=r"501.*NOT_IMPLEMENTED.*NCCL"):
        trl.get_world_size()
    with pytest.raises(Exception, match=r"501.*NOT_IMPLEMENTED"):
        trl._post(f"{house.url}/start_weight_update", json={})
    serves(house)
