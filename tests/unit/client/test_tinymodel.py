"""The tiny model: small, complete, and the same every time."""

import json
from pathlib import Path

import pytest
from ebbtide.tinymodel import VOCABULARY, make
from safetensors import safe_open
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "tiny", layers=1)


def test_it_is_made_again_only_when_asked_for_another(model: Path) -> None:
    before = (model / "model.safetensors").stat().st_mtime_ns
    assert make(model, layers=1) == model
    assert (model / "model.safetensors").stat().st_mtime_ns == before
    make(model.with_name("other"), layers=2)
    make(model.with_name("other"), layers=1)
    assert (model.with_name("other") / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert not list(model.parent.glob(".*"))


def test_any_user_of_a_container_may_read_it(model: Path) -> None:
    assert {file.stat().st_mode & 0o777 for file in model.iterdir()} == {0o644}


def test_the_tokenizer_fills_the_vocabulary(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert len(tokenizer) == VOCABULARY == json.loads((model / "config.json").read_text())["vocab_size"]
    text = "Ebb and flow \u2192 42!"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("tied", [False, True])
def test_the_weights_are_bfloat16_and_tied_on_request(tmp_path: Path, tied: bool) -> None:
    with safe_open(make(tmp_path / "m", layers=1, tied=tied) / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert ("lm_head.weight" in names) is not tied
