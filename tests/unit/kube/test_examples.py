"""The manifests in examples/cluster: a server that can be carried out, and a trainer that finds its gateway."""

from pathlib import Path
from typing import Any

import yaml
from ebbtide_api.load import load_file
from ebbtide_api.server import InferenceServer
from ebbtide_operator.kube.children import children, first_problem
from ebbtide_operator.kube.names import BORROWS, GATEWAY_AUDIENCE
from ebbtide_operator.kube.site_views import problem_of

from .given import SITE, at

FOLDER = Path(__file__).resolve().parents[3] / "examples/cluster"


def example() -> InferenceServer:
    (found,) = load_file(FOLDER / "server.yaml")
    assert isinstance(found, InferenceServer)
    return found.model_copy(update={"metadata": found.metadata.model_copy(update={"namespace": "ebbtide", "uid": "u"})})


def trainer() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / "trainer.yaml").read_text())}


def test_the_server_can_be_carried_out() -> None:
    assert problem_of(example()) is None
    assert first_problem(example()) is None
    pod = at(children(example(), SITE)[-1], "spec.template.spec")
    assert at(pod, "containers.engine")["image"] == example().spec.engine.image
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in at(pod, "containers.engine")["volumeMounts"]
    assert [claim["resourceClaimName"] for claim in pod["resourceClaims"]] == ["actor-gpus"]


def test_the_trainer_uses_the_servers_devices_and_says_so() -> None:
    template = trainer()["Job"]["spec"]["template"]
    assert template["metadata"]["labels"] == {BORROWS: example().group}
    claims = [claim["resourceClaimName"] for claim in template["spec"]["resourceClaims"]]
    assert claims == [example().spec.colocation.devices.claim]  # type: ignore[union-attr]


def test_the_trainer_may_lend_and_its_token_is_for_the_gateway() -> None:
    found = trainer()
    assert found["RoleBinding"]["roleRef"]["name"] == "ebbtide-lend"
    assert found["RoleBinding"]["subjects"][0]["name"] == found["ServiceAccount"]["metadata"]["name"]
    (source,) = at(found["Job"]["spec"]["template"]["spec"], "volumes.token")["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == GATEWAY_AUDIENCE
