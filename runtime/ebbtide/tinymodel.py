"""Make a tiny Llama with its own tokenizer: the model of the demo, the tests and the benches.

Needs torch, transformers and tokenizers (they come with the engine). The same arguments give the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 512
SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
# Enough different words to fill the vocabulary.
CORPUS = """
the quick brown fox jumps over the lazy dog and runs along the shore of the silent sea before the morning tide comes in
memory ebbs and flows between those who serve and those who learn, so lend what sleeps and take back what you gave
a ship waits for high water, lifts its anchor, leaves the harbour and follows the moon across a wide and quiet ocean
every wave returns with something new: sand, shells, pieces of driftwood, small green stones, letters from far away
engines sleep while trainers work, then wake with better weights and answer each question with fresh words
measure twice, promise once, never report what was asked for, only what was found on every device of every rank
cache blocks travel from device to host to disk and home again, each one checked, named and counted on the way
""".strip().split("\n")
# Wide enough that a wrong KV block or a wrong weight changes the greedy tokens at once.
SPREAD = 0.08


def make(
    path: str | os.PathLike[str], *, hidden: int = 256, layers: int = 4, seed: int = 0, tied: bool = False
) -> Path:
    """Write the model to the folder `path`, unless the same one is there already, and return the folder.

    bfloat16, 512 tokens, about `(0.26 + 0.6 * layers) * (hidden / 256) ** 2` million parameters.
    """
    target = Path(path)
    recipe = {"hidden": hidden, "layers": layers, "seed": seed, "tied": tied, "vocabulary": VOCABULARY, "recipe": 1}
    stamp = target / "recipe.json"
    if stamp.is_file() and json.loads(stamp.read_text()) == recipe:
        return target
    building = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    _quiet()
    _tokenizer().save_pretrained(building)
    _model(hidden, layers, seed, tied).save_pretrained(building)
    (building / "recipe.json").write_text(json.dumps(recipe))
    for file in building.iterdir():
        file.chmod(0o644)  # weights come out for their owner alone, and no user of a container is that
    # By rename, so that nobody ever loads half a model.
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)
    return target


def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=4096, **SPECIAL)
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    return fast


def _model(hidden: int, layers: int, seed: int, tied: bool) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        max_position_embeddings=4096,
        initializer_range=SPREAD,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    """Write the model to the folder given as the only argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m ebbtide.tinymodel FOLDER")
    sys.stdout.write(f"{make(sys.argv[1])}\n")


if __name__ == "__main__":
    main()
