"""A wrong file is answered with file, line, column, field, and what is allowed; a hostile one with a sentence."""

import os
import textwrap
from pathlib import Path

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.explain import dotted, parsed
from ebbtide_api.load import MAX_PROBLEMS, Problem, load_file, load_text
from ebbtide_api.policy import KVCachePolicy
from ebbtide_api.server import InferenceServer
from ebbtide_api.supported import unsupported
from ebbtide_api.yamltree import MAX_BYTES, MAX_DEPTH, MAX_DOCUMENTS
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples/local/server.yaml"

HEAD = """\
apiVersion: ebbtide.dev/v1alpha1
kind: InferenceServer
metadata: {name: tiny}
spec:
  model: {source: /models/tiny}
"""
POLICY = """\
apiVersion: ebbtide.dev/v1alpha1
kind: KVCachePolicy
metadata: {name: small}
spec: {tiers: {dram: {capacity: 1Gi}}}
"""


def problems(text: str | bytes) -> tuple[Problem, ...]:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return load_text(raw, "f.yaml", Path("/etc")).problems


def only(text: str | bytes) -> Problem:
    (problem,) = problems(text)
    return problem


def test_objects_of_both_kinds_are_read_in_order() -> None:
    loaded = load_text(f"---\n{HEAD}---\n{POLICY}---\n# nothing\n".encode(), "f.yaml", Path())
    assert loaded.problems == ()
    assert [type(one) for one in loaded.objects] == [InferenceServer, KVCachePolicy]
    assert [one.name for one in loaded.objects] == ["tiny", "small"]


def test_the_example_is_right() -> None:
    (server,) = load_file(EXAMPLE)
    assert isinstance(server, InferenceServer)
    assert server.group == "actor"
    assert server.spec.model.source == str(ROOT / "examples/local/models/tiny")
    assert server.spec.engine.env[0].name == "VLLM_CPU_KVCACHE_SPACE"
    devices = server.spec.colocation.devices
    assert devices is not None
    assert devices.cpu is not None
    assert devices.cpu.memory.bytes == 8 * 2**30


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("./models/tiny", "/srv/a/models/tiny"),
        ("../tiny", "/srv/tiny"),
        ("././x/../tiny", "/srv/a/tiny"),
        ("/abs/tiny", "/abs/tiny"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
    ],
)
def test_a_relative_source_is_relative_to_the_file(source: str, expected: str) -> None:
    text = HEAD.replace("/models/tiny", source).encode()
    (server,) = load_text(text, "f.yaml", Path("/srv/a")).objects
    assert isinstance(server, InferenceServer)
    assert server.spec.model.source == expected


def test_load_file_resolves_against_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/s.yaml").write_text(HEAD.replace("/models", "./models"))
    monkeypatch.chdir(tmp_path)
    (server,) = load_file("deep/s.yaml")
    assert isinstance(server, InferenceServer)
    assert server.spec.model.source == str(tmp_path / "deep/models/tiny")


WRONG = [
    # (lines below `spec:`, line, column, field, what the sentence must say)
    ("  replica: 2", 6, 3, "spec.replica", "there is no field 'replica' here"),
    ("  replica: 2", 6, 3, "spec.replica", "Did you mean replicas?"),
    ("  xyzzy: 2", 6, 3, "spec.xyzzy", "only model, replicas, awakeReplicas"),
    ("  awake_replicas: 1", 6, 3, "spec.awake_replicas", "Did you mean awakeReplicas?"),
    ("  replicas: two", 6, 13, "spec.replicas", "must be a whole number, not 'two'"),
    ('  replicas: "2"', 6, 13, "spec.replicas", "must be a whole number, not '2'"),
    ("  replicas: 1.5", 6, 13, "spec.replicas", "must be a whole number, not 1.5"),
    ("  replicas: 0", 6, 13, "spec.replicas", "0 is not between 1 and 256"),
    ("  power: asleep", 6, 10, "spec.power", "is not one of Awake, Asleep. Did you mean Asleep?"),
    ("  role: Decoder", 6, 9, "spec.role", "Both, Prefill, Decode. Did you mean Decode?"),
    ("  engine: {version: 0.32}", 6, 21, "spec.engine.version", 'write "0.32" with the quotes'),
    ("  engine:\n    version: yes", 7, 14, "spec.engine.version", 'write "true" with the quotes'),
    ("  engine:", 6, 10, "spec.engine", "has no value: it must be a group of fields"),
    ("  engine: []", 6, 11, "spec.engine", "must be a group of fields, not a list"),
    ("  engine: {extraArgs: --seed=1}", 6, 23, "spec.engine.extraArgs", "must be a list, not '--seed=1'"),
    ("  engine: {extraArgs: [a, --port=1]}", 6, 27, "spec.engine.extraArgs[1]", "--port: use spec.engine.port"),
    ("  engine: {env: [{name: A}, {value: b}]}", 6, 29, "spec.engine.env[1].name", "is missing: The variable's name"),
    ("  engine: {env: [{name: PYTHONPATH}]}", 6, 25, "spec.engine.env[0].name", "Ebbtide sets this variable"),
    ("  sleep:\n    settle: 30", 7, 13, "spec.sleep.settle", "must be a string such as 200ms, 30s"),
    ("  sleep:\n    settle: 1d", 7, 13, "spec.sleep.settle", "'1d' is not of the form 200ms"),
    ("  sleep:\n    settle: 2m", 7, 13, "spec.sleep.settle", "must be at least 0s and at most 60s"),
    ("  sleep: {parking: Off}", 6, 20, "spec.sleep.parking", "false is not one of Eager, OnSleep, Never"),
    ("  sleep: {wakeOnRequest: maybe}", 6, 26, "spec.sleep.wakeOnRequest", "must be true or false, not 'maybe'"),
    ("  pair: {prefill: {name: p}}", 6, 9, "spec.pair", "role Decode needs pair"),
    ("  colocation: {group: Actor}", 6, 23, "spec.colocation.group", "'Actor' is not of the form ^[a-z0-9]"),
    ("  colocation:\n    devices: {}", 7, 14, "spec.colocation.devices", "set exactly one of claim, env, cpu"),
    ("  template: 3", 6, 13, "spec.template", "must be a group of fields, not 3"),
]


@pytest.mark.parametrize(("below", "line", "column", "field", "why"), WRONG)
def test_a_wrong_field_is_named_with_its_place(below: str, line: int, column: int, field: str, why: str) -> None:
    problem = only(HEAD + below + "\n")
    assert (problem.line, problem.column, problem.field) == (line, column, field)
    assert why in problem.why


def test_all_problems_are_listed_in_the_order_of_the_file() -> None:
    found = problems(HEAD + "  power: on\n  replicas: 0\n  role: x\n")
    assert [problem.field for problem in found] == ["spec.power", "spec.replicas", "spec.role"]


@pytest.mark.parametrize(
    ("text", "line", "field", "why"),
    [
        ("", 1, "", "the file holds no object"),
        ("# only a comment\n", 1, "", "the file holds no object"),
        ("just text", 1, "", "an object is a group of fields"),
        ("- a\n", 1, "", "an object is a group of fields"),
        ("kind: InferenceServer\n", 1, "apiVersion", "is missing: ebbtide.dev/v1alpha1"),
        ("apiVersion: v1\nkind: Pod\n", 1, "apiVersion", "'v1' is not ebbtide.dev/v1alpha1"),
        (HEAD.replace("v1alpha1", "v1alpha2"), 1, "apiVersion", "Did you mean ebbtide.dev/v1alpha1?"),
        (HEAD.replace("InferenceServer", "inferenceserver"), 2, "kind", "Did you mean InferenceServer?"),
        (HEAD.replace("kind: InferenceServer", "kind: {a: b}"), 2, "kind", "is not InferenceServer or KVCachePolicy"),
        (HEAD.replace("{name: tiny}", "{}"), 3, "metadata.name", "is missing: The object's name"),
        (HEAD.replace("{name: tiny}", "{name: Tiny}"), 3, "metadata.name", "'Tiny' is not of the form"),
        (HEAD.replace("{source: /models/tiny}", "{}"), 5, "spec.model.source", "is missing: The folder"),
        (HEAD + "---\n" + HEAD, 9, "metadata.name", "'tiny' is there already, in line 3"),
        (HEAD + "---\n" + POLICY + "  x: 1\n", 11, "", "while parsing"),
    ],
)
def test_wrong_objects(text: str, line: int, field: str, why: str) -> None:
    problem = problems(text)[0]
    assert problem.field == field
    assert why in problem.why
    assert problem.line == line


def test_one_name_in_two_kinds_or_namespaces_is_no_clash() -> None:
    other = HEAD.replace("name: tiny", "name: tiny, namespace: b")
    assert problems(HEAD + "---\n" + POLICY.replace("small", "tiny") + "---\n" + other) == ()


NOT_OUR_YAML = [
    ("a: [1", 1, "while parsing a flow sequence"),
    ("a: 1\n b: 2\n", 2, "mapping values are not allowed here"),
    ("a: 1\na: 2\n", 2, "the key 'a' is there already, in line 1"),
    ("\tb: 1", 1, "cannot start any token"),
    ("1: x", 1, "a key must be a string: put 1 in quotes"),
    ("on: x", 1, "a key must be a string: put on in quotes"),
    ("? [a]\n: b", 1, "a key must be a string"),
    ("a: &x {b: 1}\nc: {<<: *x}", 2, "merge keys (<<) are not taken"),
    ("a: !!python/object:os.system x", 1, "the tag !!python/object:os.system is not taken"),
    ("a: !!binary aGk=", 1, "the tag !!binary is not taken"),
    ("a: !include secrets.yaml", 1, "the tag !include is not taken"),
    ("a: !!set {b}", 1, "the tag !!set is not taken"),
    ("a: 0x10", 1, "'0x10' is not a plain number"),
    ("a: 0777", 1, "'0777' is not a plain number"),
    ("a: 1:30", 1, "'1:30' is not a plain number"),
    ("a: 1_000", 1, "'1_000' is not a plain number"),
    ("a: .inf", 1, "'.inf' is not a plain number"),
    ("a: .nan", 1, "'.nan' is not a plain number"),
    ("a: 1.0e+999", 1, "'1.0e+999' is not a plain number"),
    ('a: "x\\0y"', 1, "the character U+0000 is not allowed"),
    ('a: "\\ud800"', 1, "the character U+D800 is not allowed"),
    ("a: *nowhere", 1, "found undefined alias"),
    ("a: &x [*x]", 1, f"nested deeper than {MAX_DEPTH} levels"),
    ("a: b\x00", 1, "U+0000 is not allowed in YAML"),
    (b"a: \xff\n", 1, "not UTF-8 text"),
    (b"a: b\nc: \xc3\x28\n", 2, "not UTF-8 text"),
    ("%YAML 9.9\n---\na: b", 1, "found incompatible YAML document"),
]


@pytest.mark.parametrize(("text", "line", "why"), NOT_OUR_YAML)
def test_yaml_that_is_not_taken(text: str | bytes, line: int, why: str) -> None:
    problem = only(text)
    assert problem.line == line
    assert why in problem.why


def test_an_alias_is_taken() -> None:
    text = HEAD + "  engine: {env: &e [{name: A, value: '1'}], extraArgs: [&s --seed=1, *s]}\n"
    (server,) = load_text(text.encode(), "f.yaml", Path()).objects
    assert isinstance(server, InferenceServer)
    assert server.spec.engine.extra_args == ("--seed=1", "--seed=1")


def billion_laughs() -> str:
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (billion_laughs(), "more than 10000 values"),
        ("[" * 100_000, f"nested deeper than {MAX_DEPTH} levels"),
        ("{a: " * 50_000, f"nested deeper than {MAX_DEPTH} levels"),
        ("\n".join(" " * n + "a:" for n in range(300)), f"nested deeper than {MAX_DEPTH} levels"),
        ("- " * 1000, f"nested deeper than {MAX_DEPTH} levels"),
        ("a: " + "9" * 100_000, "is not a plain number"),
        ("a: -" + "9" * 20, "is not a plain number"),
        ("a: " + "x" * MAX_BYTES, "larger than 256 KiB"),
        ("[" + "1," * 11_000 + "1]", "more than 10000 values"),
        ("--- a\n" * (MAX_DOCUMENTS + 1), f"more than {MAX_DOCUMENTS} documents"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_hostile_files_get_a_sentence(text: str, why: str) -> None:
    problem = only(text)
    assert why in problem.why
    assert len(str(problem)) < 400


def test_a_template_of_any_shape_is_bounded_too() -> None:
    assert "more than 10000 values" in only(HEAD + "  template: {a: [" + "[]," * 10_001 + "]}\n").why


def test_a_problem_reads_as_one_line_and_its_excerpt() -> None:
    assert str(only(HEAD + "  power: On\n")) == textwrap.dedent("""\
        f.yaml:6:10: spec.power: true is not one of Awake, Asleep
            6 |   power: On
                         ^""")


def test_the_mark_stands_below_the_value() -> None:
    problem = only(HEAD + "  power: On\n")
    _, line, mark = str(problem).split("\n")
    assert line[mark.index("^") :] == "On"


def test_a_byte_order_mark_and_windows_line_ends_are_taken() -> None:
    text = ("\ufeff" + HEAD).replace("\n", "\r\n")
    assert problems(text) == ()
    assert problems(text + "  power: On\r\n")[0].line == 6


def test_load_file_raises_one_error_with_all_problems(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "  power: On\n  replicas: 0\n")
    with pytest.raises(EbbtideError) as caught:
        load_file(path)
    error = caught.value
    assert error.code is ErrorCode.INVALID_REQUEST
    assert [one["field"] for one in error.details["problems"]] == ["spec.power", "spec.replicas"]
    assert error.details["problems"][0] == {
        "file": str(path),
        "line": 6,
        "column": 10,
        "field": "spec.power",
        "message": "true is not one of Awake, Asleep",
    }
    assert f"{path}:6:10: spec.power" in str(error)
    assert str(error).endswith("Correct the file and run the command again.")


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "".join(f"  x{n}: 1\n" for n in range(50)))
    with pytest.raises(EbbtideError, match="and 30 more") as caught:
        load_file(path)
    assert len(caught.value.details["problems"]) == MAX_PROBLEMS


@pytest.mark.parametrize("name", ["nowhere.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(EbbtideError) as caught:
        load_file(tmp_path / name)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert str(tmp_path) in caught.value.message


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this system has no /dev/zero")
def test_an_endless_file_is_read_to_the_bound() -> None:
    with pytest.raises(EbbtideError, match="larger than 256 KiB"):
        load_file("/dev/zero")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.text("{}[]:,-&*!|>'\"#%@` \nab1", max_size=60) | st.binary(max_size=60))
def test_any_text_has_an_answer(text: str | bytes) -> None:
    assert problems(text)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_to_a_file_has_an_answer(data: st.DataObject) -> None:
    text = EXAMPLE.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    damaged = text[:start] + data.draw(st.text("{}[]:,-&*!'\" \n0aA", max_size=4)) + text[end:]
    loaded = load_text(damaged.encode(), "f.yaml", Path("/etc"))
    lines = damaged.count("\n") + 1
    assert loaded.objects or loaded.problems
    assert all(1 <= problem.line <= lines and problem.why for problem in loaded.problems)


@pytest.mark.parametrize(
    "path", [(), ("spec",), ("spec", "engine", "env", 0, "name"), ("spec", "engine", "extraArgs", 12)]
)
def test_a_path_that_was_written_is_read_again(path: tuple[str | int, ...]) -> None:
    assert parsed(dotted(path)) == path


def test_what_a_check_refuses_is_told_with_its_line_and_code(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        "apiVersion: ebbtide.dev/v1alpha1\nkind: InferenceServer\nmetadata: {name: tiny}\nspec:\n"
        "  model: {source: /models/tiny}\n  role: Prefill\n  engine:\n    extraArgs:\n      - --enable-lora\n"
    )
    (made,) = load_file(file)
    assert unsupported(made) != []
    with pytest.raises(EbbtideError) as caught:
        load_file(file, [(ErrorCode.INVALID_REQUEST, lambda _: []), (ErrorCode.NOT_YET_SUPPORTED, unsupported)])
    assert caught.value.code is ErrorCode.NOT_YET_SUPPORTED
    assert f"{file}:6:9: spec.role: " in caught.value.message
    assert f"{file}:9:9: spec.engine.extraArgs[0]: --enable-lora: " in caught.value.message
