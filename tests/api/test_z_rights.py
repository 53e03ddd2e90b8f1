"""Least privilege, proven: what the operator was granted is what it used. The tests before fail on any 403."""

from pathlib import Path

import pytest
import yaml
from ebbtide_operator.kube.kinds import SERVERS
from ebbtide_operator.kube.watch import SELECTORS

from tests.api.cluster import ASKED

HERE = Path(__file__).parent


def granted() -> set[tuple[str, str]]:
    roles = [each for each in yaml.safe_load_all((HERE / "rbac.yaml").read_text()) if each["kind"].endswith("Role")]
    return {
        (verb, resource)
        for role in roles
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_right_was_used(request: pytest.FixtureRequest) -> None:
    if not {item.path for item in request.session.items} >= set(HERE.glob("test_*.py")):
        pytest.skip("only the whole folder uses every right")
    watched = {(verb, kind.plural) for kind in (SERVERS, *SELECTORS) for verb in ("list", "watch")}
    # An apply of what is not there yet needs both.
    applied = {("create", resource) for verb, resource in ASKED if verb == "patch" and "/" not in resource}
    assert granted() - (ASKED | watched | applied) == set(), "granted and never used"
