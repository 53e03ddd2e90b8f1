"""An operator process whose agents are real and whose engines are scripted and slow."""

from __future__ import annotations

import sys

from tests.support import real_agents
from tests.unit.operator import fake_operator

fake_operator.LAUNCHER = (sys.executable, "-m", "tests.shims.launcher")

if __name__ == "__main__":
    real_agents.fake_operator.main()
