"""The engine's environment: what is added, what is refused, what the user may decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from ebbtide_api.member import Engine, MemberConfig
from ebbtide_runtime.launcher.environment import build, installed_plugins, problems, processors

from tests.support.members import member_config


def environment(member: MemberConfig, inherited: dict[str, str] | None = None, cores: int = 2) -> dict[str, str]:
    return build(member, "/m/member.json", inherited or {}, {"ebbtide", "theirs"}, range(cores))


def test_what_is_always_set(tmp_path: Path) -> None:
    env = environment(member_config(tmp_path))
    assert env["EBBTIDE_MEMBER"] == "/m/member.json"
    assert (env["VLLM_SERVER_DEV_MODE"], env["VLLM_USE_RUST_FRONTEND"]) == ("0", "0")
    assert env["VLLM_PLUGINS"] == "ebbtide,theirs"
    assert [env[name] for name in ("VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")] == ["1", "1", "1"]


def test_the_shell_cannot_turn_dev_mode_on(tmp_path: Path) -> None:
    env = environment(member_config(tmp_path), {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_RUST_FRONTEND": "1"})
    assert (env["VLLM_SERVER_DEV_MODE"], env["VLLM_USE_RUST_FRONTEND"]) == ("0", "0")


def test_the_users_word_goes_before_the_shells_and_ours(tmp_path: Path) -> None:
    member = member_config(tmp_path, env={"HF_HUB_OFFLINE": "0", "A": "member"})
    env = environment(member, {"A": "shell", "B": "shell", "VLLM_NO_USAGE_STATS": "0"})
    assert (env["A"], env["B"], env["HF_HUB_OFFLINE"], env["VLLM_NO_USAGE_STATS"]) == ("member", "shell", "0", "0")


@pytest.mark.parametrize(
    ("asked", "got"),
    [("mine", "mine,ebbtide"), ("", "ebbtide"), ("a, b ,ebbtide", "a,b,ebbtide"), ("ebbtide", "ebbtide")],
)
def test_the_users_plugins_are_kept_with_ours(tmp_path: Path, asked: str, got: str) -> None:
    assert environment(member_config(tmp_path, env={"VLLM_PLUGINS": asked}))["VLLM_PLUGINS"] == got


def test_a_shells_api_key_does_not_lock_the_agent_out(tmp_path: Path) -> None:
    assert "VLLM_API_KEY" not in environment(member_config(tmp_path), {"VLLM_API_KEY": "k"})


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"VLLM_SERVER_DEV_MODE": "1"}, "VLLM_SERVER_DEV_MODE=1 (dev mode"),
        ({"VLLM_SERVER_DEV_MODE": "True"}, "VLLM_SERVER_DEV_MODE=True"),
        ({"VLLM_USE_RUST_FRONTEND": "1"}, "no gate"),
        ({"EBBTIDE_MEMBER": "/x"}, "EBBTIDE_MEMBER (Ebbtide sets it)"),
        ({"PYTHONPATH": "/x"}, "PYTHONPATH"),
        ({"VLLM_API_KEY": "k"}, "VLLM_API_KEY (API keys are not supported yet)"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, env: dict[str, str], named: str) -> None:
    found = problems(member_config(tmp_path, env=env))
    assert len(found) == 1
    assert named in found[0]


@pytest.mark.parametrize("off", ["0", "", "false", "No"])
def test_a_switch_that_is_off_is_fine(tmp_path: Path, off: str) -> None:
    assert problems(member_config(tmp_path, env={"VLLM_SERVER_DEV_MODE": off, "VLLM_CPU_KVCACHE_SPACE": "1"})) == []


@pytest.mark.parametrize(
    ("ranks", "cores", "bound"),
    [(1, 2, None), (2, 2, "0|1"), (2, 4, "0,1|2,3"), (2, 5, "0,1|2,3"), (4, 2, None)],
)
def test_ranks_share_the_processors(tmp_path: Path, ranks: int, cores: int, bound: str | None) -> None:
    env = environment(member_config(tmp_path, tensor_parallel=ranks), cores=cores)
    assert env.get("VLLM_CPU_OMP_THREADS_BIND") == bound


def test_the_users_binding_is_kept(tmp_path: Path) -> None:
    member = member_config(tmp_path, tensor_parallel=2, env={"VLLM_CPU_OMP_THREADS_BIND": "3|7"})
    assert environment(member)["VLLM_CPU_OMP_THREADS_BIND"] == "3|7"


def test_cuda_ranks_are_not_bound(tmp_path: Path) -> None:
    member = member_config(tmp_path, tensor_parallel=2, engine=Engine.CUDA)
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment(member)


def test_our_plugins_are_installed() -> None:
    assert "ebbtide" in installed_plugins()


def test_there_are_processors() -> None:
    assert processors()
