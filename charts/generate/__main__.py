"""Writes the chart's generated files: `python -m charts.generate`, or `--check` to only compare."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from charts.generate.alerts import render_rules
from charts.generate.engine import render_dashboard

CHART = Path(__file__).resolve().parents[1] / "lockstep"


def render_files() -> dict[Path, str]:
    """Render every generated file of the chart, by its path."""
    return {
        CHART / "dashboards" / "lockstep-engine.json": render_dashboard(),
        CHART / "rules" / "lockstep.yaml": render_rules(),
    }


def main() -> int:
    """Write the files, or with `--check` name those that differ and end with 1."""
    parser = argparse.ArgumentParser(prog="python -m charts.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    if parser.parse_args().check:
        stale = [path for path, text in render_files().items() if not path.exists() or path.read_text() != text]
        for path in stale:
            print(
                f"{path.relative_to(CHART.parents[1])} is out of date: run `python -m charts.generate`", file=sys.stderr
            )
        return int(bool(stale))
    for path, text in render_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
