"""What the operator may do: enough for its work and nothing else."""

from __future__ import annotations

import pytest

from support.cluster.helm import Manifest, pick, render

NAMESPACED = ("--set", "watchNamespaces={team-a,team-b}")
KINDS = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}


def rules_of(*arguments: str) -> list[Manifest]:
    roles = [one for one in render(*arguments) if one["kind"] in {"ClusterRole", "Role"}]
    return [rule for role in roles for rule in role["rules"]]


@pytest.mark.parametrize("arguments", [(), NAMESPACED], ids=["cluster", "namespaced"])
def test_no_rule_has_a_wildcard_or_reaches_secrets(arguments: tuple[str, ...]) -> None:
    rules = rules_of(*arguments)
    assert rules
    for rule in rules:
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not {"secrets", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
        assert "nonResourceURLs" not in rule


def test_watched_namespaces_leave_nothing_at_cluster_scope() -> None:
    manifests = [one for one in render(*NAMESPACED) if one["kind"] in KINDS]
    assert {(one["kind"], one["metadata"]["namespace"]) for one in manifests} == {
        (kind, namespace) for kind in ("Role", "RoleBinding") for namespace in ("team-a", "team-b")
    }


def test_without_watched_namespaces_one_cluster_role_serves_all() -> None:
    assert {one["kind"] for one in render() if one["kind"] in KINDS} == {"ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize("arguments", [(), NAMESPACED], ids=["cluster", "namespaced"])
def test_the_pods_account_is_the_one_that_is_bound(arguments: tuple[str, ...]) -> None:
    manifests = render(*arguments)
    account = pick(manifests, "ServiceAccount")["metadata"]["name"]
    assert pick(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    roles = {(one["kind"], one["metadata"].get("namespace")): one["metadata"]["name"] for one in manifests}
    for binding in (one for one in manifests if one["kind"] in {"ClusterRoleBinding", "RoleBinding"}):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "lockstep-system"}]
        role = binding["roleRef"]
        assert roles[role["kind"], binding["metadata"].get("namespace")] == role["name"]


def test_the_operator_is_told_which_namespaces_it_may_watch() -> None:
    (container,) = pick(render(*NAMESPACED), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "WATCH_NAMESPACES", "value": "team-a,team-b"} in container["env"]


def test_the_rules_are_those_of_the_operators_work() -> None:
    granted = {
        (resource, verb) for rule in rules_of(*NAMESPACED) for resource in rule["resources"] for verb in rule["verbs"]
    }
    writes = {pair for pair in granted if pair[1] not in {"get", "list", "watch"}}
    assert writes == {
        ("servingdeployments", "patch"),
        ("servingdeployments/status", "update"),
        ("servingdeployments/finalizers", "update"),
        ("mpijobs", "create"),
        ("mpijobs", "patch"),
        ("mpijobs", "delete"),
        ("services", "create"),
        ("services", "patch"),
        ("services", "delete"),
        ("pods", "patch"),
        ("events", "create"),
    }
