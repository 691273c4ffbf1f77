"""The generated dashboard: up to date, and fit for any Grafana."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from charts.generate.__main__ import CHART, main, render_files
from support.data.expressions import DASHBOARDS, read_panels

VARIABLES = ["datasource", "namespace", "deployment", "role"]
DASHBOARD = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_generating_again_changes_nothing() -> None:
    for path, text in render_files().items():
        assert path.read_text() == text, f"{path.name} is out of date: run `python -m charts.generate`"


def test_no_dashboard_or_rules_file_is_written_by_hand() -> None:
    files = {*CHART.glob("dashboards/*"), *CHART.glob("rules/*")}
    assert files == set(render_files())


def test_check_names_a_stale_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert main() == 0
    path = next(iter(render_files()))
    monkeypatch.setattr("charts.generate.__main__.render_files", lambda: {path: "other"})
    assert main() == 1
    assert path.name in capsys.readouterr().err


@DASHBOARD
def test_the_uid_is_short_and_the_files_name(path: Path) -> None:
    assert load(path)["uid"] == path.stem
    assert len(path.stem) <= 40


def test_uids_and_titles_of_dashboards_are_unique() -> None:
    boards = [load(path) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)


@DASHBOARD
def test_the_variables_narrow_each_other(path: Path) -> None:
    variables = load(path)["templating"]["list"]
    assert [variable["name"] for variable in variables] == VARIABLES
    for number, variable in enumerate(variables[1:], start=1):
        assert variable["datasource"]["uid"] == "${datasource}"
        assert all(f'{name}=~"${name}"' in variable["query"] for name in VARIABLES[1:number])


@DASHBOARD
def test_every_panel_asks_the_datasource_that_was_picked(path: Path) -> None:
    for panel in read_panels(load(path)):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert all("uid" not in target.get("datasource", {}) for target in panel["targets"])


@DASHBOARD
def test_every_panel_has_a_title_of_its_own_a_unit_and_advice(path: Path) -> None:
    panels = list(read_panels(load(path)))
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


@DASHBOARD
def test_panels_fill_their_rows_and_never_overlap(path: Path) -> None:
    cells: set[tuple[int, int]] = set()
    positions = [panel["gridPos"] for panel in load(path)["panels"]]
    for place in positions:
        columns = range(place.get("x", 0), place.get("x", 0) + place["w"])
        taken = {(x, y) for x in columns for y in range(place.get("y", 0), place.get("y", 0) + place["h"])}
        assert not taken & cells
        cells |= taken
    height = max(place.get("y", 0) + place["h"] for place in positions)
    assert cells == {(x, y) for x in range(24) for y in range(height)}
