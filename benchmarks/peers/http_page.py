"""The part of the page about servers over HTTP: a table for each kind of load, and curves of the closed loops.

`page` asks for it. Every load that was run stands in the tables, also where a peer is faster, and also what failed.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.peers.workloads import CLOSED_LOOPS

OURS = "lockstep"
_COLOURS = ("#1f6f8b", "#c8553d", "#8a8d91", "#d9a441")
_BUSY = 0.5
"""A client's process that used more of a core may have slowed what it measured."""
Rows = Sequence[dict[str, Any]]
Wanted = tuple[str, str, bool]
"""A figure's name, its heading, and whether less is better."""
_TABLES: dict[str, tuple[str, tuple[Wanted, ...]]] = {
    "steady": (
        "Clients that start together, one request each",
        (
            ("inter_token_ms", "ms between events", True),
            ("tokens_per_event", "tokens an event", True),
            ("time_per_token_ms", "ms per token of a request", True),
            ("steady_tokens_per_s", "tokens/s while all run", False),
            ("tokens_per_s", "tokens/s, prompts included", False),
        ),
    ),
    "ttft": (
        "Prompts that arrive at once",
        (("ttft_ms", "TTFT ms, median", True), ("ttft_p99_ms", "TTFT ms, p99", True)),
    ),
    "arrivals": (
        "Streams, while a long prompt arrives each second",
        (
            ("inter_token_ms", "ms between events, median", True),
            ("inter_token_p99_ms", "ms between events, p99", True),
            ("arriving_ttft_ms", "TTFT ms of the long prompts, median", True),
        ),
    ),
    **{
        name: (
            f"Closed loop, {told}",
            (
                ("tokens_per_s_user", "tok/s/user, median", False),
                ("tokens_per_s", "output tok/s/GPU", False),
                ("all_tokens_per_s", "all tok/s/GPU", False),
                ("ttft_ms", "TTFT ms, median", True),
            ),
        )
        for name, told in zip(CLOSED_LOOPS, ("1k in, 1k out", "8k in, 1k out"), strict=True)
    },
}


def latest_served(rows: Rows) -> list[dict[str, Any]]:
    """Keep of each server and load the run that was written last."""
    kept = {(*_group(row), row["clients"], row["engine"]): row for row in rows if row["kind"] == "served"}
    return [kept[key] for key in sorted(kept)]


def render_served(rows: Rows) -> list[str]:
    """Write the Markdown of all shapes; nothing where no server was run."""
    runs, lines = latest_served(rows), list[str]()
    if runs:
        lines += ["### Over HTTP, streamed", "", *_describe(rows), ""]
    for shape, workload, setting in dict.fromkeys(map(_group, runs)):
        found = [run for run in runs if _group(run) == (shape, workload, setting)]
        told, wanted = _TABLES[workload]
        lines += [f"#### {shape}: {told}", "", _tell_lengths(found), "", *_tabulate(found, wanted), ""]
        if (shape, workload, setting) in list_curves(rows):
            lines += [f"![{shape}: {told}]({curve_name(shape, workload)})", ""]
    return lines


def _describe(rows: Rows) -> Iterable[str]:
    yield "Medians and ranges over repeats; a ratio above 1 says that Lockstep is ahead of the fastest peer."
    yield "Servers stay loaded side by side and take turns, or run `apart`, one after the other. None logs requests."
    yield ""
    for row in {(row["engine"], row["shape"]): row for row in rows if row["kind"] == "server"}.values():
        versions = ", ".join(f"{library} {version}" for library, version in row["versions"].items() if version)
        yield f"- **{row['engine']}**, {row['shape']}, with {versions}; flags `{json.dumps(row['flags'])}`"
    for row in latest_served(rows):
        where = f"{row['engine']}, {row['shape']} {row['workload']} with {row['clients']} clients"
        if row["failures"]:
            yield f"- {where}: {row['failures']} requests failed: {html.escape('; '.join(row['errors']))}"
        if row["clients_busiest"] > _BUSY:
            yield f"- {where}: a process of the clients used {row['clients_busiest']:.0%} of a core"


def _tell_lengths(runs: Rows) -> str:
    told = {name: pair for run in runs for name, pair in run["lengths"].items()}
    each = "; ".join(f"{name}: prompt {prompt}, output {output}" for name, (prompt, output) in told.items())
    repeats = ", ".join(map(str, sorted({run["repeats"] for run in runs})))
    return f"Most tokens of each {each}; temperature {runs[0]['temperature']:g}; {repeats} repeats."


def _tabulate(runs: Rows, wanted: Sequence[Wanted]) -> list[str]:
    engines = _sort_engines(runs)
    lines = [f"| clients | figure | {' | '.join(engines)} | ratio |", f"|---|---|{'---|' * len(engines)}---|"]
    for clients in sorted({run["clients"] for run in runs}):
        of_clients = [run for run in runs if run["clients"] == clients]
        apart = {run["apart"] for run in of_clients}
        head = f"{clients}, apart" if apart == {True} else f"{clients}"
        found = {run["engine"]: run["figures"] for run in of_clients}
        for name, heading, is_less_better in wanted:
            cells = [_cell(found[engine][name]) if name in found.get(engine, {}) else "" for engine in engines]
            medians = {engine: figures[name]["median"] for engine, figures in found.items() if name in figures}
            ratio = _compare(medians, is_less_better) if len(apart) == 1 else "not alike: one ran apart"
            lines.append(f"| {head} | {heading} | {' | '.join(cells)} | {ratio} |")
    return lines


def _cell(spread: dict[str, float]) -> str:
    median, low, high = (f"{spread[name]:.4g}" if spread[name] < 1e4 else f"{spread[name]:.0f}" for name in spread)
    return f"{median} [{low}-{high}]"


def _compare(medians: dict[str, float], is_less_better: bool) -> str:
    """Say how many times better Lockstep is than the best other server."""
    others = [value for engine, value in medians.items() if engine != OURS]
    if OURS not in medians or not others or not all(medians.values()):
        return ""
    ratio = min(others) / medians[OURS] if is_less_better else medians[OURS] / max(others)
    return f"{ratio:.2f}x" + ("" if ratio >= 1 else ", **behind**")


def _sort_engines(runs: Rows) -> list[str]:
    return sorted({run["engine"] for run in runs}, key=lambda name: (name != OURS, name))


def _group(row: dict[str, Any]) -> tuple[str, str, str]:
    """Say which table a row belongs to: shape, workload, and what else was asked for."""
    return row["shape"], row["workload"], json.dumps([row["temperature"], row["lengths"]])


def curve_name(shape: str, workload: str) -> str:
    """Name a curve's file, beside the page."""
    return f"peers-{shape}-{workload}.svg"


def list_curves(rows: Rows) -> list[tuple[str, str, str]]:
    """List the tables that have a curve: of each shape and closed loop the one that was written last."""
    loops = [row for row in rows if row["kind"] == "served" and row["workload"] in CLOSED_LOOPS]
    return sorted({(row["shape"], row["workload"]): _group(row) for row in loops}.values())


def draw_curve(group: tuple[str, str, str], rows: Rows) -> str:
    """Draw output tokens a second of the GPU over those of a user, a point a concurrency: an SVG document."""
    shape, workload, _ = group
    runs = [run for run in latest_served(rows) if _group(run) == group]
    engines, width, height, edge = _sort_engines(runs), 640, 400, 60
    points = {engine: _points([run for run in runs if run["engine"] == engine]) for engine in engines}
    most = [max((point[axis] for each in points.values() for point in each), default=1.0) or 1.0 for axis in (0, 1)]

    def across(value: float) -> float:
        return edge + value / most[0] * (width - 2 * edge)

    def up(value: float) -> float:
        return height - edge - value / most[1] * (height - 2 * edge)

    parts = [
        f'<text x="8" y="20" font-size="14">{html.escape(f"{shape}, {workload}: tok/s/GPU over tok/s/user")}</text>'
    ]
    parts += _axes(most, across, up)
    for number, engine in enumerate(engines):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in points[engine])
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, clients in points[engine]:
            parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="4" fill="{colour}"/>')
            parts.append(f'<text x="{across(x) + 6:.1f}" y="{up(y) - 6:.1f}" fill="{colour}">{clients}</text>')
        parts.append(f'<text x="{width - 140}" y="{40 + 18 * number}" fill="{colour}">{html.escape(engine)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', ground, *parts, "</svg>"]) + "\n"


def _points(runs: Rows) -> list[tuple[float, float, int]]:
    """Give tokens a second of a user and of the GPU, by concurrency."""
    names = ("tokens_per_s_user", "tokens_per_s")
    each = ((*(run["figures"][name]["median"] for name in names), run["clients"]) for run in runs)
    return sorted(((x, y, clients) for x, y, clients in each), key=lambda point: point[2])


def _axes(most: Sequence[float], across: Callable[[float], float], up: Callable[[float], float]) -> Iterable[str]:
    """Draw both axes with four marks each."""
    yield f'<path d="M{across(0)},{up(most[1])} V{up(0)} H{across(most[0])}" fill="none" stroke="#444444"/>'
    for part in (0.25, 0.5, 0.75, 1.0):
        x, y = most[0] * part, most[1] * part
        yield f'<text x="{across(x):.1f}" y="{up(0) + 18:.1f}" text-anchor="middle">{x:.4g}</text>'
        yield f'<text x="{across(0) - 6:.1f}" y="{up(y) + 4:.1f}" text-anchor="end">{y:.4g}</text>'
