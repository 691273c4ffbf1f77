"""The command line of `lockstep-worker bench`: which benchmarks there are, each with its arguments beside it.

Nothing here imports torch, numpy or MPI: a benchmark is imported when it runs, so that `--help` starts at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep_worker import contract
from lockstep_worker.bench.arguments import duration, length, natural, positive, positives
from lockstep_worker.bench.offline.command import add_cuts, add_decode, add_instruments
from lockstep_worker.errors import ConfigError, LockstepError
from lockstep_worker.supervisor.supervise import find_mpirun

Measure = Callable[[argparse.Namespace], dict[str, Any]]


def add_bench(bench: argparse.ArgumentParser) -> None:
    """Give the parser of `bench` one command for each benchmark; `run` of the result measures and prints."""
    parts = bench.add_subparsers(dest="part", metavar="PART", required=True)
    for name, about, add_arguments, measure in (
        ("update", "host time of update_requests, batched and per request", _add_update, _measure_update),
        ("exchange", "collectives, bytes and time of a step's exchange", _add_exchange, _measure_exchange),
        ("idle", "what an idle group costs, and how soon a request wakes it", _add_idle, _measure_idle),
        ("loop", "host time of a decode step by phase, without a device", _add_loop, _measure_loop),
        ("stream", "tokens a second that the frontend streams, without ranks", _add_stream, _measure_stream),
        ("serve", "latencies and rates of a running server, over HTTP and streamed", _add_serve, _measure_serve),
    ):
        part = parts.add_parser(name, help=about)
        add_arguments(part)
        part.add_argument("--json", action="store_true", help="print the result on one line")
        part.set_defaults(run=_run, measure=measure)
    add_decode(parts.add_parser("decode", help="time of a decode step with random weights, one line a batch"))
    add_instruments(parts.add_parser("instruments", help="what metrics and their stamps cost a decode step"))
    add_cuts(parts.add_parser("cuts", help="the fastest cuts of a decode step's kernels, for the table of them"))


def _run(arguments: argparse.Namespace) -> int:
    measure: Measure = arguments.measure
    try:
        result = measure(arguments)
    except ConfigError:
        raise
    except LockstepError as error:
        print(f"lockstep-worker: {error}", file=sys.stderr)
        return contract.EXIT_FAILED
    print(json.dumps(result, indent=None if arguments.json else 2))
    return contract.EXIT_OK


# --- update -------------------------------------------------------------------------------------------------
def _add_update(update: argparse.ArgumentParser) -> None:
    update.add_argument("--batch", type=positive, default=1024, help="rows of a step (default: %(default)s)")
    update.add_argument("--repetitions", type=positive, default=2000, help="timed calls (default: %(default)s)")


def _measure_update(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.update import measure_update  # noqa: PLC0415

    return measure_update(arguments.batch, arguments.repetitions)


# --- exchange -----------------------------------------------------------------------------------------------
def _add_exchange(exchange: argparse.ArgumentParser) -> None:
    exchange.add_argument("--ranks", type=positive, default=2, help="ranks on this host (default: %(default)s)")
    exchange.add_argument("--steps", type=positive, default=300, help="timed steps of a kind (default: %(default)s)")


def _measure_exchange(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.exchange import run_exchange  # noqa: PLC0415

    return run_exchange(arguments.ranks, arguments.steps, find_mpirun(sys.executable), os.environ)


# --- idle ---------------------------------------------------------------------------------------------------
def _add_idle(idle: argparse.ArgumentParser) -> None:
    idle.add_argument("--ranks", type=positive, default=2, help="ranks on this host (default: %(default)s)")
    idle.add_argument("--requests", type=positive, default=200, help="timed wake-ups (default: %(default)s)")
    idle.add_argument("--seconds", type=positive, default=12, help="of idling before them (default: %(default)s)")


def _measure_idle(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.idle import run_idle  # noqa: PLC0415

    mpirun = find_mpirun(sys.executable)
    return run_idle(arguments.ranks, arguments.requests, arguments.seconds, mpirun, os.environ)


# --- loop ---------------------------------------------------------------------------------------------------
def _add_loop(loop: argparse.ArgumentParser) -> None:
    loop.add_argument("--batch", type=positives, default=(1, 64, 1024), metavar="N,...", help="(default: 1,64,1024)")
    loop.add_argument("--steps", type=positive, default=1000, help="timed steps of each (default: %(default)s)")
    loop.add_argument(
        "--functions", type=natural, default=0, metavar="N", help="name the N costliest too (default: %(default)s)"
    )


def _measure_loop(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.offline.loop import measure_loop  # noqa: PLC0415

    return measure_loop(arguments.batch, arguments.steps, arguments.functions)


# --- stream -------------------------------------------------------------------------------------------------
def _add_stream(stream: argparse.ArgumentParser) -> None:
    bundled = Path(contract.BUNDLED_MODEL)
    stream.add_argument(
        "--model",
        type=Path,
        default=bundled if bundled.is_dir() else None,
        required=not bundled.is_dir(),
        metavar="DIR",
        help="whose tokenizer; in the image its own model, elsewhere required",
    )
    stream.add_argument("--streams", type=positive, default=128, help="at once (default: %(default)s)")
    stream.add_argument("--tokens", type=positive, default=1000, help="of each stream (default: %(default)s)")
    stream.add_argument(
        "--step-ms",
        type=duration,
        default=0.0,
        metavar="MS",
        help="time of a step, which brings each stream a token; 0 is as fast as the sockets (default: %(default)s)",
    )


def _measure_stream(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.streaming.measure import measure_stream  # noqa: PLC0415

    return measure_stream(arguments.model, arguments.streams, arguments.tokens, arguments.step_ms)


# --- serve --------------------------------------------------------------------------------------------------
def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--url", required=True, help="the server, as http://127.0.0.1:8000")
    serve.add_argument("--model", required=True, metavar="NAME", help="the name that the server knows it by")
    serve.add_argument(
        "--concurrency", type=positives, default=(1, 8, 32), metavar="N,...", help="levels (default: 1,8,32)"
    )
    serve.add_argument(
        "--requests", type=positive, metavar="N", help="of each level (default: four a connection, at least 16)"
    )
    for name, default in (("input", 128), ("output", 64)):
        serve.add_argument(
            f"--{name}-length",
            type=length,
            default=(default, default),
            metavar="N[:M]",
            help=f"{name} tokens, or from N to M drawn evenly (default: {default})",
        )
    serve.add_argument("--vocab-size", type=positive, default=400, help="prompt ids lie below (default: %(default)s)")
    serve.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    serve.add_argument("--seed", type=int, default=0, help="of prompts and lengths (default: %(default)s)")
    serve.add_argument(
        "--timeout",
        dest="timeout_s",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="of one request (default: 600)",
    )
    serve.add_argument("--api-key-file", metavar="FILE", help="the key to send")


def _measure_serve(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.serving.measure import Load, measure_serve  # noqa: PLC0415

    given = vars(arguments)
    return measure_serve(Load(**{field.name: given[field.name] for field in dataclasses.fields(Load)}))
