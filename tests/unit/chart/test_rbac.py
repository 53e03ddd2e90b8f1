"""Who gets which right: no wildcards, nothing for the whole cluster that a namespace can hold."""

import helm_python
import pytest
import yaml

from .rendering import ROOT, SHAPES, Object, objects, of_kind, one

FORBIDDEN = {"secrets", "pods/exec", "pods/attach", "pods/portforward", "nodes", "roles", "rolebindings", "*"}


def rules(it: Object) -> set[tuple[str, str, str]]:
    """Return (group, resource, verb)."""
    return {
        (group, resource, verb)
        for rule in it["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_rule_has_a_wildcard_or_a_dangerous_resource(shape: Object) -> None:
    found = objects(shape)
    for role in of_kind("Role", found) + of_kind("ClusterRole", found):
        for group, resource, verb in rules(role):
            assert "*" not in {group, resource, verb}, role["metadata"]["name"]
            assert resource not in FORBIDDEN, role["metadata"]["name"]


def test_by_default_only_the_question_who_calls_is_for_the_whole_cluster() -> None:
    found = objects({"crds": {"install": False}})
    assert [each["metadata"]["name"] for each in of_kind("ClusterRoleBinding", found)] == ["home-ebbtide-callers"]
    (callers,) = of_kind("ClusterRole", found)
    assert rules(callers) == {("authentication.k8s.io", "tokenreviews", "create")}


def test_each_watched_namespace_has_its_own_role_and_account() -> None:
    found = objects({"watchNamespaces": ["a", "b"]})
    for kind in ("Role", "RoleBinding"):
        places = [
            each["metadata"]["namespace"]
            for each in of_kind(kind, found)
            if each["metadata"]["name"] == "ebbtide-operator"
        ]
        assert places == ["a", "b"]
    accounts = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in of_kind("ServiceAccount", found)}
    assert accounts >= {("home", "ebbtide-operator"), ("a", "ebbtide-engine"), ("b", "ebbtide-engine")}
    assert ("home", "ebbtide-engine") not in accounts


def test_cluster_wide_is_one_role_with_the_same_rules() -> None:
    wide = objects({"clusterWide": True})
    assert [each["metadata"]["name"] for each in of_kind("Role", wide)] == ["ebbtide-operator-home"]
    assert rules(one("ClusterRole", "home-ebbtide-operator", wide)) == rules(one("Role", "ebbtide-operator", objects()))


def test_cluster_wide_and_a_list_of_namespaces_contradict() -> None:
    with pytest.raises(helm_python.HelmError, match="watchNamespaces is for clusterWide: false"):
        objects({"clusterWide": True, "watchNamespaces": ["a"]})


def test_the_operator_makes_tokens_of_itself_alone() -> None:
    home = one("Role", "ebbtide-operator-home", objects())
    (rule,) = [each for each in home["rules"] if "serviceaccounts/token" in each["resources"]]
    assert rule == {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": ["ebbtide-operator"],
        "verbs": ["create"],
    }


def test_the_operator_reads_servers_and_writes_their_status_alone() -> None:
    ours = {
        (resource, verb)
        for group, resource, verb in rules(one("Role", "ebbtide-operator", objects()))
        if group == "ebbtide.dev"
    }
    reads = {("inferenceservers", verb) for verb in ("list", "watch")}
    assert ours == reads | {("inferenceservers/status", "patch")}


def test_bindings_name_the_operators_account() -> None:
    found = objects({"watchNamespaces": ["a"]})
    bindings = of_kind("RoleBinding", found) + of_kind("ClusterRoleBinding", found)
    subjects = {(each["subjects"][0]["namespace"], each["subjects"][0]["name"]) for each in bindings}
    assert subjects == {("home", "ebbtide-operator"), ("home", "ebbtide-uninstall")}


def test_roles_of_people_join_the_clusters_own() -> None:
    labels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in of_kind("ClusterRole", objects())}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    joined = {
        name: {key.removeprefix(prefix) for key in each if key.startswith(prefix)} for name, each in labels.items()
    }
    assert joined["ebbtide-view"] == {"view", "edit", "admin"}
    assert joined["ebbtide-edit"] == {"edit", "admin"}
    assert joined["ebbtide-lend"] == set()


def test_people_may_view_without_writing_and_lend_is_apart() -> None:
    found = objects()
    assert {verb for _, _, verb in rules(one("ClusterRole", "ebbtide-view", found))} == {"get", "list", "watch"}
    # The gateway asks for `get` before it says how an operation stands: who may lend must see it end.
    lend = {("ebbtide.dev", "inferenceservers/lend", "create"), ("ebbtide.dev", "inferenceservers", "get")}
    assert rules(one("ClusterRole", "ebbtide-lend", found)) == lend
    assert not any(resource.endswith("/lend") for _, resource, _ in rules(one("ClusterRole", "ebbtide-edit", found)))


def test_the_uninstall_hook_lists_and_deletes_servers_and_nothing_else() -> None:
    hook = one("Role", "ebbtide-uninstall", objects())
    servers = {("ebbtide.dev", "inferenceservers", "list"), ("ebbtide.dev", "inferenceservers", "delete")}
    assert rules(hook) == servers | {("", "pods", "list")}
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"


def test_the_operator_may_do_exactly_what_it_may_in_the_tests_on_a_real_api_server() -> None:
    tested = list(yaml.safe_load_all((ROOT / "tests/api/rbac.yaml").read_text()))
    roles = {each["metadata"]["namespace"]: rules(each) for each in tested if each["kind"] == "Role"}
    assert rules(one("Role", "ebbtide-operator", objects())) == roles["models"]
    assert rules(one("Role", "ebbtide-operator-home", objects())) == roles["ebbtide-system"]
    (callers,) = [rules(each) for each in tested if each["kind"] == "ClusterRole"]
    assert rules(one("ClusterRole", "home-ebbtide-callers", objects())) == callers


def documented(section: str) -> set[tuple[str, str]]:
    """Return (resource, verb) of the table under a heading of docs/rbac.md."""
    text = (ROOT / "docs/rbac.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    return {(name.strip(" `"), verb.strip()) for name, verbs in rows for verb in verbs.split(",")}


@pytest.mark.parametrize(
    ("section", "kind", "name"),
    [
        ("The operator, in each namespace with servers", "Role", "ebbtide-operator"),
        ("The operator, at home", "Role", "ebbtide-operator-home"),
        ("The operator, in the whole cluster", "ClusterRole", "home-ebbtide-callers"),
    ],
)
def test_every_right_is_explained_in_the_docs(section: str, kind: str, name: str) -> None:
    assert documented(section) == {(resource, verb) for _, resource, verb in rules(one(kind, name, objects()))}
