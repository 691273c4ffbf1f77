"""The alert rules by promtool: well formed, firing when they must and silent when they must, each with a runbook."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.data.expressions import RULES

CASES = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
ALERTS = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expectations(alert: str) -> list[Any]:
    tests = [test for path in CASES for test in yaml.safe_load(path.read_text())["tests"]]
    return [case["exp_alerts"] for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert]


def test_promtool_takes_the_rules_file() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_and_stay_silent_as_described(path: Path) -> None:
    promtool("test", "rules", str(path))


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_tried_firing_and_silent(alert: str) -> None:
    outcomes = expectations(alert)
    assert any(outcomes)
    assert not all(outcomes)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_runbook_that_says_what_to_do(alert: str) -> None:
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## What it means",
        "## What to look at",
        "## How to mend it",
    ]
    assert "```sh\n" in text


def test_no_runbook_is_left_without_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)
