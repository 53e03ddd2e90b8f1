"""An operator process whose agents are real and whose engines are scripted. See fake_operator."""

from __future__ import annotations

import sys

from tests.unit.operator import fake_operator

fake_operator.AGENT = (sys.executable, "-m", "ebbtide_runtime.agent")
fake_operator.LAUNCHER = (sys.executable, "-m", "tests.support.scripted_launcher")

if __name__ == "__main__":
    fake_operator.main()
