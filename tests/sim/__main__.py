"""Replay one run, readable: python -m tests.sim --seed N [--steps N]."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .world import STEPS, Violation, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps with bad luck, before it ends")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    try:
        world = run(asked.seed, asked.steps, told=print)
    except Violation as violation:
        print(f"\nINVARIANT {violation.invariant} at step {violation.step}: {violation.text}")
        return 1
    print(
        f"\nat rest after {world.steps} steps, {world.loop.at:.0f} s of their time, {time.process_time() - began:.2f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
