"""The flags and variables that Ebbtide keeps for itself: said once, known to CEL, and known to the engine."""

import json
import re
import subprocess
import sys

import pytest
from ebbtide_api import reserved, supported
from ebbtide_api.engine_spec import EngineSpec
from ebbtide_api.schema import structural
from ebbtide_api.spec import VALIDATIONS
from hypothesis import given
from hypothesis import strategies as st

PATTERN = re.compile(reserved._pattern())


def taken(argument: str) -> bool:
    try:
        EngineSpec(extra_args=(argument,))
    except ValueError as error:
        return "Ebbtide sets the flag" in str(error)
    return False


@pytest.mark.parametrize("flag", sorted(reserved.FLAGS))
@pytest.mark.parametrize("value", ["", "=1", "=a=b", "="])
def test_a_flag_of_ours_is_refused_in_every_spelling(flag: str, value: str) -> None:
    spellings = {flag, flag.replace("-", "_").replace("__", "--", 1)} if flag.startswith("--") else {flag}
    for spelling in spellings:
        assert taken(spelling + value)
        assert PATTERN.fullmatch(spelling + value)


@pytest.mark.parametrize(
    "argument",
    ["--model-impl=vllm", "--ports", "--load-format-x", "-tpx", "--seed", "--max-model-len=1", "model", "--", "-"],
)
def test_other_arguments_are_the_users(argument: str) -> None:
    assert not taken(argument)
    assert not PATTERN.fullmatch(argument)


@given(st.text(st.sampled_from("-_=aehlmoprtu"), min_size=1, max_size=9) | st.sampled_from(sorted(reserved.FLAGS)))
def test_python_and_cel_agree(argument: str) -> None:
    assert taken(argument) == bool(PATTERN.fullmatch(argument))


def test_the_refusal_says_what_to_use_instead() -> None:
    with pytest.raises(ValueError, match=r"--served-model-name: use spec\.model\.servedName"):
        EngineSpec(extra_args=("--served_model_name=x",))


def test_what_to_use_instead_exists() -> None:
    fields = json.dumps(structural(EngineSpec))
    assert "extraArgs" in fields
    named = {where for where in reserved.FLAGS.values() if where}
    assert all(where.startswith("spec.") for where in named)


@pytest.mark.parametrize("name", reserved.ENVIRONMENT)
def test_a_variable_of_ours_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Ebbtide sets this variable"):
        EngineSpec.model_validate({"env": [{"name": name}]})


@pytest.mark.parametrize("name", ["EBBTIDE_AMX", "VLLM_CPU_KVCACHE_SPACE", "LD_PRELOAD", "pythonpath"])
def test_other_variables_are_the_users(name: str) -> None:
    assert EngineSpec.model_validate({"env": [{"name": name, "value": "1"}]}).env[0].name == name


def test_the_rules_are_on_the_items_so_that_the_server_names_the_index() -> None:
    engine = structural(EngineSpec)["properties"]
    assert engine["extraArgs"]["items"][VALIDATIONS][0]["rule"] == f"!self.matches('{reserved._pattern()}')"
    assert engine["env"]["items"][VALIDATIONS][0]["fieldPath"] == ".name"


def test_the_pattern_needs_no_escape_in_cel() -> None:
    assert not set(reserved._pattern()) & set("'\"\\")


def test_no_flag_is_both_ours_and_not_yet_supported() -> None:
    assert not set(reserved.FLAGS) & set(supported._FLAGS)


@pytest.mark.vllm
def test_the_engine_knows_every_flag() -> None:
    """A flag that vLLM renames would pass unseen under its new name."""
    program = (
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "parser = make_arg_parser(FlexibleArgumentParser())\n"
        "print('FLAGS', *(flag for action in parser._actions for flag in action.option_strings))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FLAGS ")]
    known = set(line.split())
    assert set(reserved.FLAGS) <= known
    assert set(supported._FLAGS) <= known
