"""The reference: transformers, in float32, in a process of its own, on the files that were published."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# The engine computes in bfloat16, so its choice may differ from float32's where two tokens are nearly as good.
# So the reference is asked how much worse than its own best each token of the engine is, in standard deviations
# of the logits: at worst 0.3 for the same weights (the rounding of twelve layers), above 5 for others.
_SCRIPT = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
logging.disable_progress_bar()
worst = []
for folder, prompt, tokens in json.load(sys.stdin):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    start = AutoTokenizer.from_pretrained(folder)(prompt)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([start + tokens])).logits[0, len(start) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    worst.append(float(((logits.max(-1).values - chosen) / logits.std(-1)).max()))
print(json.dumps(worst))
"""
CLOSE, FAR = 0.75, 3.0


@dataclass(frozen=True)
class Claim:
    """These are the greedy tokens of the model in `folder`, says somebody."""

    folder: Path
    prompt: str
    tokens: list[int]


def surprises(claims: list[Claim]) -> list[float]:
    """Return, for each claim, how far its worst token is from the reference's best, in standard deviations."""
    asked = json.dumps([(str(claim.folder), claim.prompt, claim.tokens) for claim in claims])
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], input=asked, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]
