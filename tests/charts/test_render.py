"""What helm makes of the chart, with defaults and with each scenario in `ci/`."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from support.cluster.helm import CHART, MPIJOB, PROMETHEUS, HelmError, helm, notes, pick, render

SCENARIOS = sorted(CHART.glob("ci/*-values.yaml"))
EVERYTHING = (PROMETHEUS, MPIJOB)


def leaves(values: Any, path: str = "") -> set[str]:
    """Paths of the chart's own keys; what is passed on to Kubernetes is one value."""
    if not isinstance(values, dict) or not values or path in {".operator.resources", ".operator.affinity"}:
        return {path}
    return {leaf for key, value in values.items() for leaf in leaves(value, f"{path}.{key}")}


def at(values: Any, path: str) -> Any:
    for key in path.split(".")[1:]:
        values = values[key]
    return values


@pytest.mark.parametrize("values", [None, *SCENARIOS], ids=lambda path: path.stem if path else "defaults")
def test_lint_is_clean(values: Any) -> None:
    arguments = ["--values", str(values)] if values else []
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *arguments)


@pytest.mark.parametrize("serves", [(), (PROMETHEUS,), EVERYTHING], ids=["bare", "prometheus", "everything"])
@pytest.mark.parametrize("values", [None, *SCENARIOS], ids=lambda path: path.stem if path else "defaults")
def test_every_scenario_renders_distinct_objects(values: Any, serves: tuple[str, ...]) -> None:
    arguments = ["--values", str(values)] if values else []
    manifests = render(*arguments, serves=serves)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in manifests]
    assert len(names) == len(set(names))
    assert pick(manifests, "Deployment")


def test_a_scenario_sets_every_value_to_something_else() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    changed = yaml.safe_load((CHART / "ci" / "all-values.yaml").read_text())
    assert [path for path in leaves(defaults) if at(defaults, path) == at(changed, path)] == []


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("imagee.tag=x", "imagee"),
        ("image.repositry=x", "repositry"),
        ("watchNamespace={a}", "watchNamespace"),
        ("crds.instal=true", "instal"),
        ("rbac.enabled=true", "enabled"),
        ("serviceAccount.nam=x", "nam"),
        ("operator.loglevel=info", "loglevel"),
        ("operator.extraEnv[0].name=A,operator.extraEnv[0].vale=b", "vale"),
        ("monitoring.podmonitor.enabled=true", "podmonitor"),
        ("monitoring.podMonitor.intervall=5s", "intervall"),
        ("monitoring.prometheusRule.runbookUrl=https://x", "runbookUrl"),
        ("dashboards.label.a=b", "label"),
        ("imagePullSecrets[0].nme=x", "nme"),
    ],
)
def test_a_misspelt_key_is_refused_by_name(setting: str, path: str) -> None:
    with pytest.raises(HelmError, match=rf"'{path}'.* not allowed"):
        render("--set", setting)


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("image.digest=latest", "/image/digest"),
        ("image.repository=", "/image/repository"),
        ("watchNamespaces={Team_A}", "/watchNamespaces/0"),
        ("watchNamespaces=team-a", "/watchNamespaces"),
        ("operator.logLevel=loud", "/operator/logLevel"),
        ("monitoring.podMonitor.interval=often", "/monitoring/podMonitor/interval"),
        ("monitoring.prometheusRule.runbookBaseUrl=wiki", "/monitoring/prometheusRule/runbookBaseUrl"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(setting: str, path: str) -> None:
    with pytest.raises(HelmError, match=f"at '{path}'"):
        render("--set", setting)


def test_every_object_of_the_schema_refuses_unknown_keys() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    open_objects = {"#/definitions/strings", "#/definitions/kubernetes"}

    def closed(node: Any) -> bool:
        if not isinstance(node, dict) or node.get("$ref") in open_objects:
            return True
        if "properties" in node and node.get("additionalProperties") is not False:
            return False
        return all(closed(child) for child in (*node.get("properties", {}).values(), node.get("items")))

    assert closed({**schema, "properties": schema["properties"] | {"global": {}}})


def test_the_operator_runs_under_the_restricted_pod_security_standard() -> None:
    pod = pick(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & set(pod)


def test_two_operators_never_run_at_once() -> None:
    spec = pick(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize(
    ("arguments", "image"),
    [
        ([], "ghcr.io/lockstep/lockstep-operator:0.1.0"),
        (["--set", "image.repository=lockstep-operator,image.tag=dev"], "lockstep-operator:dev"),
        (
            ["--set", f"image.tag=dev,image.digest=sha256:{'a' * 64}"],
            f"ghcr.io/lockstep/lockstep-operator@sha256:{'a' * 64}",
        ),
    ],
    ids=["version", "tag", "digest wins"],
)
def test_the_image_is_named_by_values(arguments: list[str], image: str) -> None:
    (container,) = pick(render(*arguments), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image


def test_labels_of_values_never_replace_those_of_the_selector() -> None:
    spec = pick(render("--values", str(CHART / "ci" / "all-values.yaml")), "Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["example.com/team"] == "inference"


@pytest.mark.parametrize("release", ["lockstep", "x", "1234", "a" * 53])
def test_any_release_name_gives_names_that_kubernetes_takes(release: str) -> None:
    manifests = render(release=release, serves=EVERYTHING)
    assert all(len(one["metadata"]["name"]) <= 63 or one["kind"] == "ConfigMap" for one in manifests)
    selector = pick(manifests, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector["app.kubernetes.io/instance"] == release


def test_the_crd_comes_with_the_chart_and_stays_when_it_goes() -> None:
    crd = pick(render(), "CustomResourceDefinition")
    assert crd["metadata"]["name"] == "servingdeployments.serving.lockstep.dev"
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_crd_can_be_left_out() -> None:
    kinds = {one["kind"] for one in render("--set", "crds.install=false")}
    assert "Deployment" in kinds
    assert "CustomResourceDefinition" not in kinds


def test_notes_say_what_is_missing_and_what_to_do_next() -> None:
    text = notes()
    assert "[ ] MPIJob, kubeflow.org/v2beta1" in text
    assert "[ ] Prometheus operator, monitoring.coreos.com/v1" in text
    assert "kubectl -n lockstep-system rollout status deployment/lockstep-operator" in text
    assert text.count("  kubectl ") >= 4
    assert "serves every namespace" in text


def test_notes_name_the_served_namespaces() -> None:
    assert "the namespaces team-a, team-b" in notes("--set", "watchNamespaces={team-a,team-b}")
