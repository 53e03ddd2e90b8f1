"""No rule without a case, no field without a decision, no valid object that the loader or the server would lose."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ebbtide_api.base import Message, Reading
from ebbtide_api.explain import faults
from ebbtide_api.load import load_text
from ebbtide_api.policy import KVCachePolicy, OnSleep, OnWeightChange
from ebbtide_api.quantity import Amount
from ebbtide_api.resource import Resource
from ebbtide_api.schema import structural
from ebbtide_api.server import InferenceServer
from ebbtide_api.spec import VALIDATIONS, Spec
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.api.objects import BAD, CHANGES, POLICY
from tests.unit.api.test_objects import KINDS, read
from tests.unit.api.wire import messages, wire

ALL = messages()


def rules(schema: dict[str, Any]) -> set[str]:
    """Return the messages of every rule in a schema."""
    found = {rule["message"] for rule in schema.get(VALIDATIONS, [])}
    for inner in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found |= rules(inner)
    return found


def provoked() -> set[str]:
    found = {why for _, _, _, why in CHANGES}
    for case in BAD:
        raw = case.object()
        try:
            read(raw)
        except ValidationError as error:
            found |= {why for _, _, why in faults(error, KINDS[raw["kind"]])}
    return found


def test_every_rule_is_broken_by_some_case() -> None:
    said = provoked()
    for kind in KINDS.values():
        for message in rules(structural(kind)):
            # Bounds are tried on both sides elsewhere; names and flags have cases whose sentence is more exact.
            general = message.startswith(("must be at least", "metadata.name has", "Ebbtide sets this flag"))
            assert general or any(message == why or why in message for why in said), message


def test_every_model_of_a_spec_is_a_spec() -> None:
    """A plain message in a spec would lose its rules on the way to the CRD."""
    for model in (InferenceServer, KVCachePolicy):
        for part in parts(model.model_fields["spec"].annotation):
            assert issubclass(part, Spec), part


def parts(annotation: Any) -> set[type[Message]]:
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    found = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Message)}
    for kind in list(found):
        for field in kind.model_fields.values():
            found |= parts(field.annotation)
    return found


def test_the_walk_over_a_spec_reaches_its_depths() -> None:
    names = {part.__name__ for part in parts(InferenceServer.model_fields["spec"].annotation)}
    assert {"ServerSpec", "Sleep", "DrainSpec", "Idle", "EnvVar", "CpuDevice", "Pair", "ObjectRef"} <= names


@pytest.mark.parametrize("model", [one for one in ALL if not issubclass(one, Resource)], ids=lambda one: one.__name__)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_unknown_field_is_dropped_by_readings_and_refused_by_the_rest(
    model: type[Message], data: st.DataObject
) -> None:
    raw = data.draw(wire(model))
    known, kinds = validated(model, raw)
    assume(known is not None)
    newer, kinds = validated(model, raw | {"fromTheFuture": 1})
    if issubclass(model, Reading):
        assert newer == known
    else:
        assert kinds == {"extra_forbidden"}


def validated(model: type[Message], raw: dict[str, Any]) -> tuple[Message | None, set[str]]:
    try:
        return model.model_validate(raw), set()
    except ValidationError as error:
        return None, {fault["type"] for fault in error.errors()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_valid_object_is_loaded_from_yaml_as_it_is(kind: str, data: st.DataObject) -> None:
    made = data.draw(objects(kind))
    text = yaml.safe_dump(made.wire(), allow_unicode=data.draw(st.booleans()))
    loaded = load_text(text.encode(), "f.yaml", Path("/etc"))
    assert loaded.problems == ()
    assert loaded.objects[0].wire() == made.wire()


def objects(kind: str) -> st.SearchStrategy[InferenceServer | KVCachePolicy]:
    """Return valid objects of a kind, most of whose fields are set."""
    spec = wire(KINDS[kind].model_fields["spec"].annotation)  # type: ignore[arg-type]
    head = {"apiVersion": "ebbtide.dev/v1alpha1", "kind": kind, "metadata": {"name": "drawn"}}
    drawn = spec.map(lambda inner: validated(KINDS[kind], head | {"spec": consistent(inner)})[0])
    return drawn.filter(lambda made: made is not None)  # type: ignore[return-value]


def consistent(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a drawn spec with what rules over several fields most often refuse put right."""
    spec = json.loads(json.dumps(spec))
    if "model" in spec:
        spec["model"]["source"] = "/models/drawn"
        spec.pop("pair", None)
        spec["role"] = "Both"
    if devices := (spec.get("colocation") or {}).get("devices"):
        spec["colocation"]["devices"] = {"env": "A"} if len(devices) != 1 or None in devices.values() else devices
    if volume := ((spec.get("tiers") or {}).get("disk") or {}).get("volume"):
        spec["tiers"]["disk"]["volume"] = {"emptyDir": {}} if len(volume) != 1 or None in volume.values() else volume
    if "quotas" in spec:
        spec["quotas"] = [{"tenant": f"t{index}"} for index, _ in enumerate(spec["quotas"])]
    return spec  # type: ignore[no-any-return]


def test_the_least_policy_has_the_designs_defaults() -> None:
    spec = KVCachePolicy.model_validate(POLICY).spec
    assert (spec.eviction.policy, spec.eviction.reserve.value) == ("S3FIFO", 10)
    assert (spec.contexts.default_ttl, spec.contexts.max_ttl) == ("5m", "24h")
    assert (spec.contexts.min_tokens, spec.contexts.max_pinned_ratio.value) == (0, 50)
    assert (spec.cascade.dram_to_disk, spec.on_weight_change, spec.on_sleep) == (
        "OnEvict",
        OnWeightChange.SALT,
        OnSleep.KEEP,
    )
    assert spec.tiers.disk is not None
    assert spec.tiers.disk.durability == "Batch"
    assert spec.tiers.disk.volume.wire() == {"emptyDir": {}}
    assert spec.tiers.disk.capacity.bytes == 500 * 2**30
    assert spec.quotas == ()


def test_every_default_is_one_that_the_field_takes() -> None:
    """Pydantic does not check defaults; the API server does."""
    for model in ALL:
        for name, field in model.model_fields.items():
            default = field.get_default()
            if isinstance(default, Amount):
                kind = type(default)
                assert kind(str(default)) == default, f"{model.__name__}.{name}"
            if isinstance(default, Spec):
                assert type(default).model_validate(default.wire()) == default, f"{model.__name__}.{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_absent_and_what_is_default_read_the_same(kind: str) -> None:
    least = read({"InferenceServer": BAD[0].base, "KVCachePolicy": POLICY}[kind])
    assert read(least.wire()) == least
    assert read(least.wire()).spec.wire() == least.spec.wire()
