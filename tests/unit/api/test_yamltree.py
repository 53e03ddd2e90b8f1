"""Every value and key of a YAML file has its place, and only plain values come out."""

import json
from datetime import UTC, datetime

import pytest
import yaml
from ebbtide_api.yamltree import MAX_BYTES, MAX_VALUES, Document, Place, YamlError, read
from hypothesis import given, settings
from hypothesis import strategies as st

TEXT = """\
# a comment
name: tiny
list:
  - one
  - {two: 2,
     three: [3]}
"""


def one(text: str) -> Document:
    (document,) = read(text.encode())
    return document


def test_values_and_their_places() -> None:
    document = one(TEXT)
    assert document.value == {"name": "tiny", "list": ["one", {"two": 2, "three": [3]}]}
    assert document.values == {
        (): Place(2, 1),
        ("name",): Place(2, 7),
        ("list",): Place(4, 3),
        ("list", 0): Place(4, 5),
        ("list", 1): Place(5, 5),
        ("list", 1, "two"): Place(5, 11),
        ("list", 1, "three"): Place(6, 13),
        ("list", 1, "three", 0): Place(6, 14),
    }


def test_keys_and_their_places() -> None:
    assert one(TEXT).keys == {
        ("name",): Place(2, 1),
        ("list",): Place(3, 1),
        ("list", 1, "two"): Place(5, 6),
        ("list", 1, "three"): Place(6, 6),
    }


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("name",), Place(2, 7)),
        (("name", "deeper"), Place(2, 7)),
        (("list", 7), Place(4, 3)),
        (("nowhere",), Place(2, 1)),
        ((), Place(2, 1)),
    ],
)
def test_a_path_that_is_not_there_has_the_nearest_place(path: tuple[str | int, ...], place: Place) -> None:
    assert one(TEXT).place(path) == place


def test_a_key_falls_back_to_the_value_around_it() -> None:
    assert one(TEXT).key(("list",)) == Place(3, 1)
    assert one(TEXT).key(("list", 0)) == Place(4, 5)
    assert one(TEXT).key(("other",)) == Place(2, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", "a"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("~", None),
        ("null", None),
        ("", None),
        ("None", "None"),
        ("true", True),
        ("False", False),
        ("on", True),
        ("Off", False),
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("9223372036854775807", 2**63 - 1),
        ("1.5", 1.5),
        ("-2.5e+3", -2500.0),
        ("1e3", "1e3"),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("30s", "30s"),
        ("64Gi", "64Gi"),
        ("=", "="),
        ('"\\ud83c\\udf0a"', "\U0001f30a"),
        ("|\n  two\n  lines", "two\nlines"),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_scalars_are_what_kubectl_makes_of_them(text: str, value: object) -> None:
    made = one(f"x: {text}").value
    assert made == {"x": value}
    assert isinstance(made, dict)
    assert type(made["x"]) is type(value)


def test_a_date_stays_text() -> None:
    """PyYAML would make it a datetime, which no message has."""
    text = "x: 2026-01-01 00:00:00 +00:00"
    assert yaml.safe_load(text) == {"x": datetime(2026, 1, 1, tzinfo=UTC)}
    assert one(text).value == {"x": "2026-01-01 00:00:00 +00:00"}


def test_an_aliased_value_has_the_place_of_its_anchor() -> None:
    document = one("a: &x [1]\nb: *x\n")
    assert document.value == {"a": [1], "b": [1]}
    assert document.place(("b", 0)) == Place(1, 8)
    assert document.key(("b",)) == Place(2, 1)


def test_documents_that_are_empty_are_left_out() -> None:
    assert [document.value for document in read(b"---\n---\na\n---\n# nothing\n---\nb\n...\n")] == ["a", "b"]
    assert read(b"") == []


def test_an_error_has_its_place_and_path() -> None:
    with pytest.raises(YamlError) as caught:
        read(b"a:\n  - b: 1\n    c: 0x1F\n")
    assert (caught.value.place, caught.value.path) == (Place(3, 8), ("a", 0, "c"))
    assert str(caught.value) == caught.value.why


def test_an_error_in_bytes_has_its_place() -> None:
    with pytest.raises(YamlError, match="not UTF-8") as caught:
        read("ä: ö\nü: ".encode() + b"\xff")
    assert caught.value.place == Place(2, 4)


def test_a_character_that_yaml_forbids_has_its_place() -> None:
    with pytest.raises(YamlError, match="U\\+0007") as caught:
        read(b"a: b\nc: d\x07")
    assert caught.value.place == Place(2, 5)


def test_the_bounds_are_kept_to_the_value() -> None:
    exactly = "[" + ",".join("1" for _ in range(MAX_VALUES - 1)) + "]"
    assert isinstance(one(exactly).value, list)
    with pytest.raises(YamlError, match="more than"):
        read(exactly.replace("]", ",1]").encode())
    assert len(read(b"a" * MAX_BYTES)) == 1
    with pytest.raises(YamlError, match="larger"):
        read(b"a" * (MAX_BYTES + 1))


names = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=6)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(plain.filter(lambda value: value is not None), st.booleans())
def test_what_pyyaml_writes_is_read_back(value: object, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    assert one(text).value == value


@settings(max_examples=100, deadline=None)
@given(plain.filter(lambda value: value is not None))
def test_json_is_yaml(value: object) -> None:
    assert one(json.dumps(value)).value == value
