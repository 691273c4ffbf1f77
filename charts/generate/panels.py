"""Panels in one look: size, legend, tooltip and the datasource variable; knows Grafana, not Lockstep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line or set of lines: an expression, and the legend's text with `{{label}}` in it."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class About:
    """What every panel says about itself: its title, what the reader should do, its unit, and its width in columns."""

    title: str
    description: str
    unit: str
    width: int = 12


def thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """Colours by value: `None` is the base colour."""
    marks = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(marks)


def _targets(*queries: Query) -> list[Any]:
    return [
        prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + number))
        for number, query in enumerate(queries)
    ]


def _described(panel: Any, about: About, height: int) -> Any:
    panel.title(about.title).description(about.description).unit(about.unit)
    return panel.datasource(DATASOURCE).span(about.width).height(height)


def graph(about: About, *queries: Query, stacked: bool = False, top: float | None = None) -> timeseries.Panel:
    """Lines over time with a table legend; `stacked` shows parts of a whole, `top` fixes the axis' end."""
    panel = timeseries.Panel().targets(_targets(*queries)).min(0)
    panel.line_width(1).fill_opacity(45 if stacked else 8).show_points(common_model.VisibilityMode.NEVER)
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if top is not None:
        panel.axis_soft_max(top)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.TABLE)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["mean", "max", "lastNotNull"])
    )
    panel.tooltip(
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI).sort(common_model.SortOrder.DESCENDING)
    )
    return _described(panel, about, 9)


def number(about: About, query: Query, colors: dashboard.ThresholdsConfig, decimals: int | None = None) -> stat.Panel:
    """One big number with its recent course behind it."""
    panel = stat.Panel().targets(_targets(query)).thresholds(colors)
    panel.graph_mode(common_model.BigValueGraphMode.AREA).color_mode(common_model.BigValueColorMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    if decimals is not None:
        panel.decimals(decimals)
    return _described(panel, about, 4)


def distribution(about: About, expr: str) -> heatmap.Panel:
    """A histogram's buckets over time; `expr` keeps the label `le`."""
    query = prometheus.Dataquery().expr(expr).legend_format("{{le}}").format(PromQueryFormat.HEATMAP).ref_id("A")
    panel = heatmap.Panel().targets([query]).calculate(False).show_legend().show_tooltip()
    panel.y_axis(heatmap.YAxisConfig().unit(about.unit))
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
        .fill("dark-orange")
    )
    return _described(panel, about, 9)


def states(about: About, query: Query, names: dict[str, tuple[str, str]]) -> statetimeline.Panel:
    """A band a series: which state it was in; `names` maps a value to its text and colour."""
    results = {value: model.ValueMappingResult(text=text, color=color) for value, (text, color) in names.items()}
    panel = statetimeline.Panel().targets(_targets(query)).mappings([model.ValueMap(options=results)])
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel.thresholds(thresholds((None, "text"))).merge_values(True).show_value(common_model.VisibilityMode.AUTO)
    panel.legend(common.VizLegendOptions().show_legend(False).display_mode(common_model.LegendDisplayMode.LIST))
    return _described(panel, about, 9)
