"""Amounts are parsed and formatted exactly, as Kubernetes and Go do."""

from fractions import Fraction

import pytest
from ebbtide_api.quantity import (
    Amount,
    Duration,
    Percent,
    Quantity,
    format_duration,
    format_quantity,
    parse_duration,
    parse_quantity,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

GI = 2**30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("64Gi", 64 * GI),
        ("1.5Gi", 3 * GI // 2),
        ("500Mi", 500 * 2**20),
        ("1Ki", 1024),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("3G", 3 * 10**9),
        ("4T", 4 * 10**12),
        ("1P", 10**15),
        ("1Pi", 2**50),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", Fraction(12, 10)),
        ("500m", Fraction(1, 2)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+5", 5),
        ("-1Gi", -GI),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_parse_quantity(text: str, value: int | Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "1 Gi",
        "1gi",
        "1KI",
        "1K",
        "1Gib",
        "0x10",
        "1_000",
        "١Gi",
        "1e",
        "--1",
        "1.2.3",
        "nan",
        "1Gi\n",
        "1e999",
    ],
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "1e99", "0.1n", "1e-10"])
def test_what_kubernetes_would_round_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1k"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (3 * GI // 2, "1536Mi"),
        (64 * GI, "64Gi"),
        (2**60, "1Ei"),
        (-GI, "-1Gi"),
        (Fraction(1, 2), "500m"),
        (Fraction(1, 10**9), "1n"),
    ],
)
def test_format_quantity(value: int | Fraction, text: str) -> None:
    assert format_quantity(value) == text


def test_format_quantity_in_decimal() -> None:
    assert format_quantity(GI, binary=False) == "1073741824"
    assert format_quantity(5 * 10**9, binary=False) == "5G"


def test_a_value_finer_than_nano_has_no_form() -> None:
    with pytest.raises(ValueError, match="finer"):
        format_quantity(Fraction(1, 3))


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.booleans())
def test_quantities_round_trip(value: int, binary: bool) -> None:
    assert parse_quantity(format_quantity(value, binary=binary)) == value


@given(st.integers(-(10**15), 10**15))
def test_small_quantities_round_trip(nano: int) -> None:
    value = Fraction(nano, 10**9)
    assert parse_quantity(format_quantity(value)) == value


@given(st.integers(0, 2**63 - 1))
def test_the_canonical_form_is_the_shortest_without_a_fraction(value: int) -> None:
    text = format_quantity(value)
    assert "." not in text
    number = text.rstrip("kKMGTPEi")
    assert int(number) % 1024 or not text.endswith("i") or text.endswith("Ei")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0s", 0),
        ("200ms", 200_000_000),
        ("30s", 30 * 10**9),
        ("5m", 300 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("1h0m1.5s", 3601_500_000_000),
        ("1.5h", 5400 * 10**9),
        ("7us", 7000),
        ("7µs", 7000),
        ("9ns", 9),
        ("30m1h", 5400 * 10**9),
    ],
)
def test_parse_duration(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "30", "s", "1d", "-1s", "1s ", " 1s", "1S", "1h30", "1,5s", "1s\n", "inf"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0.5ns", "9999999999h"])
def test_a_duration_out_of_range(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5us"),
        (200_000_000, "200ms"),
        (1_500_000_000, "1.5s"),
        (60 * 10**9, "1m"),
        (90 * 10**9, "1m30s"),
        (5400 * 10**9, "1h30m"),
        (3600 * 10**9 + 1, "1h1ns"),
    ],
)
def test_format_duration(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


def test_no_duration_is_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration(-1)


@given(st.integers(0, 2**63 - 1))
def test_durations_round_trip(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@given(st.integers(0, 2**40))
def test_a_duration_of_whole_milliseconds_is_a_valid_field(milliseconds: int) -> None:
    assert Duration.of(milliseconds * 10**6).value == milliseconds * 10**6


@given(st.integers(0, 2**53))
def test_a_quantity_of_any_bytes_is_a_valid_field(value: int) -> None:
    assert Quantity.of(value).bytes == value


def test_an_amount_keeps_its_spelling() -> None:
    assert Quantity("1024Mi") != Quantity("1Gi")
    assert Quantity("1024Mi").value == Quantity("1Gi").value
    assert f"{Duration('90s')}" == "90s"
    assert Duration("1.5s").seconds == 1.5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Quantity, "1.0000001Ki"),
        (Quantity, "500m"),
        (Quantity, "-1Gi"),
        (Quantity, "1e3"),
        (Quantity, "1" * 33),
        (Duration, "7us"),
        (Duration, "5"),
        (Duration, "1m" * 17),
        (Percent, "101%"),
        (Percent, "010%"),
        (Percent, "-1%"),
        (Percent, "5"),
        (Percent, "5%\n"),
    ],
)
def test_a_field_takes_less_than_the_grammar(kind: type[Amount], text: str) -> None:
    with pytest.raises(ValueError, match=text.strip()[:8]):
        kind(text)


@pytest.mark.parametrize("kind", [Quantity, Duration, Percent])
@pytest.mark.parametrize("raw", [None, True, 1.5, [], {}, b"1Gi"])
def test_only_strings_are_amounts(kind: type[Amount], raw: object) -> None:
    with pytest.raises(ValidationError, match="must be a string such as"):
        TypeAdapter(kind).validate_python(raw)


def test_a_quantity_may_be_a_bare_integer() -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.validate_python(1048576) == "1048576"
    assert adapter.validate_json("1048576").bytes == 1048576
    assert adapter.dump_json(Quantity("1Gi")) == b'"1Gi"'
    with pytest.raises(ValidationError):
        adapter.validate_python(-1)


def test_percent() -> None:
    assert [Percent(text).value for text in ("0%", "7%", "100%")] == [0, 7, 100]
