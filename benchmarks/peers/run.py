"""Run engines side by side and write what their decode steps took, one JSON object a line.

    python -m benchmarks.peers.run --shape 0.6b --batch 1,16,64,256 --out results.jsonl

A step is `(T(output + 1) - T(1)) / output` of two rounds that differ in nothing else. In each repeat every engine runs
such a pair; the order turns round from one repeat to the next. An engine that does not start, or fails later, is
written down with its last words, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.common import Limits, Round
from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.shapes import SHAPES, floor_ms

SIDES = ("lockstep", "vllm", "transformers")
_WARM_UP = (2, 33)
_ROOT = Path(__file__).resolve().parents[2]


class SideFailed(Exception):
    """An engine's process ended."""


class Side:
    """An engine's process.

    Args:
        name: one of `SIDES`.
        limits: what every engine is given.
        flags: the engine's own.
        path: folders that only this engine's process looks for modules in.
    """

    def __init__(self, name: str, limits: Limits, flags: dict[str, Any], path: str = "") -> None:
        self.name = name
        folders = [str(_ROOT), str(_ROOT / "worker"), path, os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", f"benchmarks.peers.{name}_side"]
        self._process = subprocess.Popen(
            [*command, "--limits", limits.to_json(), "--flags", json.dumps(flags)],
            env=os.environ | {"PYTHONPATH": ":".join(filter(None, folders))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._words: deque[str] = deque(maxlen=5)
        assert self._process.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._listener.start()

    def ready(self) -> dict[str, Any]:
        """Wait until it is loaded; returns what it says of itself.

        Raises:
            SideFailed: with its last words.
        """
        return self._answer()

    def seconds(self, asked: Round) -> float:
        """Run a round.

        Raises:
            SideFailed: with its last words.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last words say why
            print(json.dumps(asdict(asked)), file=self._process.stdin, flush=True)
        return float(self._answer()["seconds"])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._listener.join()
            raise SideFailed(" | ".join(self._words))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _listen(self, errors: IO[str]) -> None:
        for line in errors:
            sys.stderr.write(f"{self.name}: {line}")
            if line.strip():
                self._words.append(line.strip())


def order(sides: Sequence[str], repeats: int) -> list[list[str]]:
    """Say who runs after whom in each repeat: there, back, there."""
    return [list(sides) if repeat % 2 == 0 else list(reversed(sides)) for repeat in range(repeats)]


def measure(
    sides: dict[str, Side], shape: str, batch: int, prompt: int, output: int, temperature: float, repeats: int
) -> list[dict[str, Any]]:
    """Time decode steps of all engines in turn; one that fails is left out from then on."""
    steps: dict[str, list[float]] = {name: [] for name in sides}
    failed: dict[str, str] = {}

    def run(name: str, length: int, seed: int) -> float:
        return sides[name].seconds(Round(batch, prompt, length, temperature, seed))

    def attempt(name: str, repeat: int) -> None:
        if name in failed:
            return
        try:
            if repeat < 0:
                for length in (*_WARM_UP, output + 1):
                    run(name, length, -1)
                return
            lengths = (1, output + 1) if repeat % 2 == 0 else (output + 1, 1)
            spent = {length: run(name, length, repeat) for length in lengths}
            steps[name].append((spent[output + 1] - spent[1]) / output * 1e3)
        except SideFailed as error:
            failed[name] = str(error)

    for repeat, names in enumerate([list(sides), *order([*sides], repeats)], start=-1):
        for name in names:
            attempt(name, repeat)
    common = {"shape": shape, "batch": batch, "prompt": prompt, "output": output, "temperature": temperature}
    floor = round(floor_ms(shape, batch, prompt + output / 2), 4)
    device = describe_device("cuda")
    return [
        {"kind": "failed", "engine": name, **common, "reason": failed[name]}
        if name in failed
        else {"kind": "run", "engine": name, **common, "floor_ms": floor, "device": device, **_sum_up(each, batch)}
        for name, each in steps.items()
    ]


def _sum_up(steps: list[float], batch: int) -> dict[str, Any]:
    median = statistics.median(steps)
    spread = {"median": round(median, 4), "low": round(min(steps), 4), "high": round(max(steps), 4)}
    return {"step_ms": spread, "repeats": len(steps), "tokens_per_s": round(batch / median * 1e3, 1)}


def main() -> None:
    """Start the engines one after the other, then measure each batch and temperature."""
    arguments = _parse()
    batches = [int(part) for part in arguments.batch.split(",")]
    limits = Limits(arguments.shape, max(batches), 2048, max(batches) * (arguments.prompt + arguments.output + 16))
    sides: dict[str, Side] = {}
    with arguments.out.open("a") as out:

        def write(row: dict[str, Any]) -> None:
            print(json.dumps(row), file=out, flush=True)
            print(json.dumps(row), flush=True)

        for name in arguments.sides.split(","):
            side = Side(name, limits, arguments.flags.get(name, {}), arguments.path.get(name, ""))
            try:
                write({"kind": "start", "shape": limits.shape, **side.ready()})
                sides[name] = side
            except SideFailed as error:
                write({"kind": "absent", "engine": name, "shape": limits.shape, "reason": str(error)})
        for batch in batches:
            for temperature in (0.0, 1.0):
                able = {name: side for name, side in sides.items() if name != "transformers" or temperature == 0}
                for row in measure(
                    able, limits.shape, batch, arguments.prompt, arguments.output, temperature, arguments.repeats
                ):
                    write(row)
                    if row["kind"] == "failed":
                        sides.pop(row["engine"]).close()
    for side in sides.values():
        side.close()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decode steps of several engines side by side, on one GPU.")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6b")
    parser.add_argument("--batch", default="1,16,64,256")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=4, help="even, so that each engine comes first as often as last")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--flags", type=json.loads, default={}, help='each engine\'s own, as {"vllm": {...}}')
    parser.add_argument("--path", type=json.loads, default={}, help='extra module folders, as {"vllm": "DIR"}')
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
