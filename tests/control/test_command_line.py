import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.deployments import EXAMPLES, build_deployment

from lockstep_operator.errors import SettingsError
from lockstep_operator.resource.crd import build_crd_yaml
from lockstep_operator.resource.docs import build_docs
from lockstep_operator.settings import Settings, read_settings

ROOT = EXAMPLES.parent


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lockstep_operator", *arguments]
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60)


def test_plan_prints_manifests_without_a_cluster() -> None:
    done = run("plan", "-f", str(EXAMPLES / "minimal.yaml"))
    assert done.returncode == 0, done.stderr
    service, job = yaml.safe_load_all(done.stdout)
    assert (service["kind"], job["kind"]) == ("Service", "MPIJob")
    assert "&id" not in done.stdout


def test_plan_names_every_bad_field_of_every_document() -> None:
    bad = build_deployment(replicas=-1, image="")
    done = run("plan", "-f", "-", text=yaml.safe_dump_all([build_deployment(), bad, {"kind": "Pod"}, 3]))
    assert done.returncode == 2
    assert done.stdout == ""
    for words in (
        "document 2: spec.replicas: must be at least 0",
        "document 2: spec.image",
        "document 3: kind: must be ServingDeployment",
        "document 4: must be an object",
    ):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "words"), [("", "no object"), ("a: [", "not YAML")], ids=["empty", "no YAML"])
def test_plan_refuses_what_is_no_object(text: str, words: str) -> None:
    done = run("plan", "-f", "-", text=text)
    assert (done.returncode, words in done.stderr) == (2, True)


def test_plan_of_a_file_that_is_not_there_says_so() -> None:
    done = run("plan", "-f", "nowhere.yaml")
    assert (done.returncode, done.stderr) == (2, "nowhere.yaml: No such file or directory\n")


def test_run_names_every_bad_setting() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"METRICS_PORT": "x", "LOG_LEVEL": "loud", "RESYNC_SECONDS": "0"})
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "LOG_LEVEL",
        "METRICS_PORT",
        "RESYNC_SECONDS",
    ]


def test_settings_have_defaults_and_namespaces_are_a_list() -> None:
    assert read_settings({}) == Settings()
    assert read_settings({"WATCH_NAMESPACES": "a, b,"}).namespaces == ("a", "b")


@pytest.mark.parametrize(
    ("path", "text"),
    [("charts/lockstep/files/crd-servingdeployments.yaml", build_crd_yaml()), ("docs/crd.md", build_docs())],
    ids=["crd", "docs"],
)
def test_generated_files_are_current(path: str, text: str) -> None:
    assert Path(ROOT / path).read_text() == text


def test_the_crd_is_kept_by_helm_and_has_no_template_action() -> None:
    text = build_crd_yaml()
    assert "helm.sh/resource-policy: keep" in text
    assert "{{" not in text
