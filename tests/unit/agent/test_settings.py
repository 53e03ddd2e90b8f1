"""Deadlines: documented, overridable, and there for every phase that is not terminal."""

import ast
import inspect
from dataclasses import fields

import pytest
from ebbtide_api.state import Phase
from ebbtide_runtime.agent import settings as module
from ebbtide_runtime.agent.lifecycle import TERMINAL
from ebbtide_runtime.agent.settings import Settings, budget


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_that_is_not_terminal_has_a_deadline(phase: Phase) -> None:
    seconds = budget(phase, Settings())
    if phase in TERMINAL:
        assert seconds is None
    else:
        assert seconds is not None
        assert 0 < seconds < float("inf")


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_field_is_overridden_by_the_environment(name: str) -> None:
    changed = Settings.of({f"EBBTIDE_{name.upper()}": "12.5", "EBBTIDE_MEMBER": "ignored"})
    assert getattr(changed, name) == 12.5
    assert sum(getattr(changed, field.name) != getattr(Settings(), field.name) for field in fields(Settings)) == 1


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf"])
def test_a_deadline_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="EBBTIDE_CANARY_S"):
        Settings.of({"EBBTIDE_CANARY_S": text})


def test_every_field_is_documented() -> None:
    """A string under each field, as the reader of the source finds it."""
    (tree,) = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
    body = tree.body
    named = [index for index, node in enumerate(body) if isinstance(node, ast.AnnAssign)]
    assert named
    for index in named:
        following = body[index + 1]
        assert isinstance(following, ast.Expr), ast.unparse(body[index])
        assert isinstance(following.value, ast.Constant)


def test_bytes_take_time() -> None:
    assert Settings(slowest_bytes_s=100).bytes_s(250) == 2.5
