"""Rules, transitions and bounds: one definition, two readers."""

from typing import Annotated

import pytest
from ebbtide_api.explain import dotted, faults, nearest
from ebbtide_api.quantity import Amount, Duration, Percent, Quantity
from ebbtide_api.schema import structural
from ebbtide_api.spec import VALIDATIONS, Between, Cel, Spec, list_map, list_of, rule, transition
from pydantic import Field, ValidationError


class Room(Spec):
    """A room."""

    low: int = Field(0, description="The lowest.")
    high_end: int = Field(9, description="The highest.")
    name: str = Field("a", description="The name.")

    @rule("self.low <= self.highEnd", "low is not above highEnd", field="low")
    def _ordered(self) -> bool:
        return self.low <= self.high_end

    @rule("self.low != 13", "thirteen is unlucky")
    def _lucky(self) -> bool:
        return self.low != 13

    @transition("self.name == oldSelf.name", "name stays", field="name")
    def _name_stays(self, old: "Room") -> bool:
        return self.name == old.name


class House(Spec):
    """A house."""

    hall: Room = Field(Room(), description="The hall.")
    attic: Room | None = Field(None, description="Perhaps an attic.")
    rooms: tuple[Room, ...] = Field((), description="More rooms.")

    @transition("self.rooms.size() >= oldSelf.rooms.size()", "rooms are never torn down")
    def _grows(self, old: "House") -> bool:
        return len(self.rooms) >= len(old.rooms)


class Castle(House):
    """A castle, which keeps the rules of a house."""

    @rule("self.rooms.size() > 0", "a castle has rooms", field="rooms")
    def _has_rooms(self) -> bool:
        return bool(self.rooms)


def found(raw: object, model: type[Spec] = House) -> list[tuple[str, bool, str]]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(raw)
    return [(dotted(path), about_the_key, why) for path, about_the_key, why in faults(caught.value, model)]


def test_a_rule_is_checked_when_an_object_is_made() -> None:
    assert Room(low=3, high_end=3).low == 3
    assert found({"low": 4, "highEnd": 3}, Room) == [("low", False, "low is not above highEnd")]


def test_a_rule_without_a_field_is_about_the_group() -> None:
    assert found({"hall": {"low": 13, "highEnd": 20}}) == [("hall", False, "thirteen is unlucky")]


def test_rules_inside_lists_name_the_item() -> None:
    assert found({"rooms": [{}, {"low": 10}]}) == [("rooms[1].low", False, "low is not above highEnd")]


def test_the_first_broken_rule_of_a_group_is_named_and_every_group_is() -> None:
    assert [path for path, _, _ in found({"hall": {"low": 13}, "attic": {"low": 99}})] == ["hall.low", "attic.low"]


def test_a_transition_is_not_checked_when_an_object_is_made() -> None:
    assert House(rooms=()).forbidden_changes(House(rooms=())) == []
    assert House(rooms=()).forbidden_changes(House(rooms=(Room(),))) == [("", "rooms are never torn down")]


def test_transitions_are_found_in_groups_within_groups() -> None:
    new = House(hall=Room(name="b"), attic=Room(name="c"))
    assert new.forbidden_changes(House(attic=Room())) == [("hall.name", "name stays"), ("attic.name", "name stays")]


def test_a_group_that_came_or_went_has_no_transition() -> None:
    assert House(attic=Room(name="x")).forbidden_changes(House()) == []
    assert House().forbidden_changes(House(attic=Room(name="x"))) == []


def test_a_model_inherits_rules_in_the_order_of_writing() -> None:
    assert [cel.message for cel, _ in Castle.rules()] == ["rooms are never torn down", "a castle has rooms"]
    assert found({}, Castle) == [("rooms", False, "a castle has rooms")]


def test_rules_and_transitions_are_in_the_schema() -> None:
    room = structural(House)["properties"]["hall"]
    assert room[VALIDATIONS] == [
        {"rule": "self.low <= self.highEnd", "message": "low is not above highEnd", "fieldPath": ".low"},
        {"rule": "self.low != 13", "message": "thirteen is unlucky"},
        {"rule": "self.name == oldSelf.name", "message": "name stays", "fieldPath": ".name"},
    ]
    assert structural(House)["properties"]["rooms"]["items"][VALIDATIONS] == room[VALIDATIONS]


def test_a_rule_without_a_field_has_no_path() -> None:
    assert Cel("true", "fine").schema() == {"rule": "true", "message": "fine"}


class Bounded(Spec):
    """Amounts with bounds."""

    time: Annotated[Duration, Between(Duration("1s"), Duration("1m"))] = Field(Duration("1s"), description="T.")
    size: Annotated[Quantity, Between(Quantity("1Ki"), Quantity("1Mi"))] | None = Field(None, description="S.")
    share: Annotated[Percent, Between(Percent("5%"), Percent("50%"))] = Field(Percent("5%"), description="P.")


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("time", ["1s", "1000ms", "60s", "1m", "0.5m"], ["999ms", "1m1s", "61s", "0s", "2h"]),
        ("size", ["1Ki", "1024", "1Mi", "1024Ki", "1M"], ["1023", "1.5Mi", "0", "1G"]),
        ("share", ["5%", "50%"], ["4%", "51%", "0%", "100%"]),
    ],
)
def test_bounds_are_of_the_value_and_not_of_the_spelling(field: str, inside: list[str], outside: list[str]) -> None:
    for text in inside:
        assert getattr(Bounded.model_validate({field: text}), field) == text
    for text in outside:
        ((path, _, why),) = found({field: text}, Bounded)
        assert path == field
        assert why.startswith("must be at least")


@pytest.mark.parametrize(
    ("low", "high", "rule_"),
    [
        (Duration("1s"), Duration("1m"), "duration(self) >= duration('1s') && duration(self) <= duration('1m')"),
        (Percent("5%"), Percent("50%"), "int(self.replace('%', '')) >= 5 && int(self.replace('%', '')) <= 50"),
    ],
)
def test_bounds_as_cel(low: Amount, high: Amount, rule_: str) -> None:
    assert type(low).cel_between(low, high) == rule_


def test_bounds_are_in_the_schema_of_an_optional_field_too() -> None:
    size = structural(Bounded)["properties"]["size"]
    assert size["x-kubernetes-int-or-string"]
    assert size[VALIDATIONS][0]["message"] == "must be at least 1Ki and at most 1Mi"
    assert "compareTo(quantity('1Mi')) <= 0" in size[VALIDATIONS][0]["rule"]


def test_amounts_are_sent_as_they_were_written() -> None:
    sent = Bounded.model_validate({"time": "60s", "size": 2048}).wire()
    assert sent == {"time": "60s", "size": "2048", "share": "5%"}


def test_list_keys() -> None:
    assert list_map("a", "b") == {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]}
    assert list_of("atomic") == {"x-kubernetes-list-type": "atomic"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [("replica", "replicas"), ("POWER", "power"), ("awakereplica", "awakeReplicas"), ("rle", "role")],
)
def test_a_near_word_is_offered(word: str, meant: str) -> None:
    allowed = ["replicas", "power", "awakeReplicas", "role"]
    assert nearest(word, allowed) == f". Did you mean {meant}?"


@pytest.mark.parametrize("word", ["", "zzz", "x" * 1000])
def test_a_far_word_is_not(word: str) -> None:
    assert nearest(word, ["replicas", "power"]) == ""


@pytest.mark.parametrize(
    ("path", "text"),
    [((), ""), (("spec",), "spec"), (("spec", "env", 0, "name"), "spec.env[0].name"), ((0, "a"), "[0].a")],
)
def test_dotted(path: tuple[str | int, ...], text: str) -> None:
    assert dotted(path) == text


def test_long_values_are_cut_in_a_sentence() -> None:
    ((_, _, why),) = found({"hall": {"low": "x" * 500}})
    assert why == "must be a whole number, not '" + "x" * 59 + "..."


def test_an_unknown_field_is_about_its_key() -> None:
    assert found({"hal": {}}) == [
        ("hal", True, "there is no field 'hal' here, only hall, attic, rooms. Did you mean hall?")
    ]
