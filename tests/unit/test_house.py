"""The house rules that a machine can check: sizes, layout, and what never appears in the tree."""

import ast
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("crds/", "operator/", "runtime/")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()]


def is_source(path: Path) -> bool:
    name = str(path.relative_to(ROOT))
    return name.startswith((*SOURCE_ROOTS, "csrc/src/", "csrc/include/"))


def line_count(path: Path) -> int:
    return path.read_text().count("\n")


def functions(path: Path) -> list[tuple[str, int]]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_source_files_have_at_most_400_lines() -> None:
    long = {str(path): line_count(path) for path in tracked("*.py", "*.cpp", "*.h") if line_count(path) > 400}
    assert long == {}


def test_functions_are_short() -> None:
    measured = [each for path in tracked("*.py") if is_source(path) for each in functions(path)]
    assert [name for name, lines in measured if lines > 40] == []
    assert statistics.median(lines for _, lines in measured) <= 10


def test_there_is_a_line_of_test_for_each_line_of_source() -> None:
    source = sum(line_count(path) for path in tracked("*.py", "*.cpp", "*.h") if is_source(path))
    tests = sum(
        line_count(path) for path in tracked("tests/*", "csrc/tests/*", "e2e/*") if path.suffix in {".py", ".cpp"}
    )
    assert tests >= source


@pytest.mark.parametrize("root", ["operator", "runtime", "crds"])
def test_a_source_root_is_never_a_package(root: str) -> None:
    """`operator/__init__.py` would shadow the standard library's operator."""
    assert not (ROOT / root / "__init__.py").exists()


def test_scripts_are_executable_and_short() -> None:
    for path in [*tracked("scripts/*"), ROOT / ".ci/run"]:
        assert path.stat().st_mode & 0o111, path
        assert line_count(path) <= 120, path


def test_no_secret_or_registry_host_is_in_the_tree() -> None:
    forbidden = re.compile(r"pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian\.org|BEGIN [A-Z ]*PRIVATE KEY")
    texts = tracked("*.py", "*.md", "*.toml", "*.yaml", "scripts/*", ".ci/*")
    found = [
        str(path) for path in texts if path != Path(__file__) and forbidden.search(path.read_text(errors="replace"))
    ]
    assert found == []
