"""The command lines of what runs a model with random weights offline: `bench decode` and its like, and `profile`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep_worker import contract
from lockstep_worker.bench.arguments import positive, positives
from lockstep_worker.bench.offline.shapes import SHAPES
from lockstep_worker.errors import ConfigError

if TYPE_CHECKING:
    from lockstep_worker.bench.offline.session import Workload


def add_decode(decode: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench decode`, which prints one JSON object a line for each batch."""
    _add_workload(decode, prompt=512, output=256)
    decode.add_argument(
        "--batch", type=positives, default=(1, 16, 64, 256), metavar="N,...", help="(default: 1,16,64,256)"
    )
    decode.add_argument("--repeats", type=positive, default=3, help="timed pairs of rounds (default: %(default)s)")
    decode.add_argument("--nvtx", action="store_true", help="draw ranges for Nsight Systems")
    decode.set_defaults(run=run_decode)


def add_instruments(instruments: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench instruments`, which prints one JSON object a line for each batch."""
    _add_workload(instruments, prompt=32, output=256)
    instruments.add_argument("--batch", type=positives, default=(1, 1024), metavar="N,...", help="(default: 1,1024)")
    instruments.add_argument("--repeats", type=positive, default=3, help="rounds in each turn (default: %(default)s)")
    instruments.set_defaults(run=run_instruments)


def run_instruments(arguments: argparse.Namespace) -> int:
    """Measure, and print each batch."""
    from lockstep_worker.bench.offline.instruments import measure_instruments  # noqa: PLC0415 - `--help` needs no torch

    options = dict(arguments.options)
    measure_instruments(_workload(arguments), arguments.batch, arguments.repeats, options, _print_line)
    return contract.EXIT_OK


def add_cuts(cuts: argparse.ArgumentParser) -> None:
    """Add the arguments of `bench cuts`, which prints one JSON object a line for each kind of cut."""
    cuts.add_argument("--shape", choices=tuple(SHAPES), default="0.6b", help="(default: %(default)s)")
    cuts.add_argument(
        "--batch", type=positives, default=(1, 16, 64, 256), metavar="N,...", help="(default: 1,16,64,256)"
    )
    cuts.add_argument("--layers", type=positive, default=8, help="of the network (default: %(default)s)")
    cuts.add_argument("--context", type=positive, default=640, help="tokens of each row (default: %(default)s)")
    cuts.add_argument("--drawn", action="store_true", help="draw rows at a temperature; else they are greedy")
    cuts.add_argument(
        "--seconds", type=float, default=120.0, help="after which no further cut of a batch is tried (default: 120)"
    )
    cuts.set_defaults(run=run_cuts)


def run_cuts(arguments: argparse.Namespace) -> int:
    """Try cuts, and print each kind's trials when they are over.

    Raises:
        ConfigError: there is no GPU.
    """
    import torch  # noqa: PLC0415 - `--help` needs none

    if not torch.cuda.is_available():
        raise ConfigError(["bench cuts: it needs a CUDA device"])
    from lockstep_worker.bench.offline.cuts import measure_cuts  # noqa: PLC0415

    given = {name: getattr(arguments, name) for name in ("shape", "layers", "context", "drawn", "seconds")}
    measure_cuts(batches=arguments.batch, report=_print_line, **given)
    return contract.EXIT_OK


def add_profile(profile: argparse.ArgumentParser) -> None:
    """Add the arguments of `profile`."""
    _add_workload(profile, prompt=512, output=64)
    profile.add_argument("--batch", type=positive, default=64, help="requests that run at once (default: %(default)s)")
    profile.add_argument("--steps", type=positive, default=8, help="profiled steps (default: %(default)s)")
    profile.add_argument("--trace", type=Path, metavar="FILE", help="write a timeline that Perfetto reads (.json)")
    profile.add_argument("--json", action="store_true", help="print the tables as one JSON object")
    profile.set_defaults(run=run_profile)


def run_decode(arguments: argparse.Namespace) -> int:
    """Measure, and print each batch when it is done."""
    from lockstep_worker import ranges  # noqa: PLC0415 - `--help` needs no torch
    from lockstep_worker.bench.offline.decode import measure_decode  # noqa: PLC0415

    if arguments.nvtx:
        ranges.turn_on(ranges.NvtxTool())
    options = dict(arguments.options)
    measure_decode(_workload(arguments), arguments.batch, arguments.repeats, options, _print_line)
    return contract.EXIT_OK


def run_profile(arguments: argparse.Namespace) -> int:
    """Profile, and print the tables."""
    from lockstep_worker.bench.offline.profile import profile_decode, show  # noqa: PLC0415

    options = dict(arguments.options)
    result = profile_decode(_workload(arguments), arguments.batch, arguments.steps, options, arguments.trace)
    print(json.dumps(result) if arguments.json else show(result))
    return contract.EXIT_OK


def _print_line(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)


def _add_workload(parser: argparse.ArgumentParser, *, prompt: int, output: int) -> None:
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6b", help="(default: %(default)s)")
    parser.add_argument("--prompt", type=positive, default=prompt, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument(
        "--output", type=positive, default=output, help="decode steps of a round (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument(
        "--set",
        dest="options",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of `serve`, such as overlap=false; may be given again",
    )


def _workload(arguments: argparse.Namespace) -> Workload:
    from lockstep_worker.bench.offline.session import Workload  # noqa: PLC0415

    return Workload(arguments.shape, arguments.prompt, arguments.output, arguments.temperature)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
