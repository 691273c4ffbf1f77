"""The command line: `lockstep-worker serve | sshd | bench`.

Each subcommand registers itself. Nothing here imports torch or MPI, so that `--help` and `sshd` start at once; a
subcommand that needs them imports them when it runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lockstep_worker import contract
from lockstep_worker.config import add_options, load_config
from lockstep_worker.errors import ConfigError, LockstepError
from lockstep_worker.supervisor.sshd import run_sshd
from lockstep_worker.supervisor.supervise import find_mpirun, refuse, supervise

Run = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print, so that every wrong input ends in one place with one exit code."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([f"command line: {message}"])


def _serve(arguments: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(arguments).items() if name not in ("command", "run", "unknown")}
    return supervise(load_config(flags, os.environ, unknown=arguments.unknown), os.environ)


def _sshd(arguments: argparse.Namespace) -> int:
    _refuse_unknown(arguments)
    return run_sshd(port=arguments.port)


def _bench_update(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.update import measure_update  # noqa: PLC0415

    return measure_update(arguments.batch, arguments.repetitions)


def _bench_exchange(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.exchange import run_exchange  # noqa: PLC0415

    return run_exchange(arguments.ranks, arguments.steps, find_mpirun(sys.executable), os.environ)


def _bench_idle(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.idle import run_idle  # noqa: PLC0415

    mpirun = find_mpirun(sys.executable)
    return run_idle(arguments.ranks, arguments.requests, arguments.seconds, mpirun, os.environ)


def _bench_serve(arguments: argparse.Namespace) -> dict[str, Any]:
    from lockstep_worker.bench.serve import Load, measure_serve  # noqa: PLC0415

    given = vars(arguments)
    return measure_serve(Load(**{field.name: given[field.name] for field in dataclasses.fields(Load)}))


def _bench(arguments: argparse.Namespace) -> int:
    _refuse_unknown(arguments)
    try:
        result = arguments.measure(arguments)
    except ConfigError:
        raise
    except LockstepError as error:
        print(f"lockstep-worker: {error}", file=sys.stderr)
        return contract.EXIT_FAILED
    print(json.dumps(result, indent=None if arguments.json else 2))
    return contract.EXIT_OK


def _refuse_unknown(arguments: argparse.Namespace) -> None:
    if arguments.unknown:
        raise ConfigError([f"command line: unknown argument {word}" for word in arguments.unknown])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _positives(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _length(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    span = _positive(least), _positive(most or least)
    if span[0] > span[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: the least is above the most")
    return span


def _add_serve(commands: argparse._SubParsersAction[_Parser]) -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model over the OpenAI API",
        usage="lockstep-worker serve --model DIR [options]",
        description="Serve one model from a group of ranks over the OpenAI API. "
        "Ctrl-C drains; a second one ends at once.",
        epilog="Each option may also stand in the --config file (as max_batch_size = 64) or in the environment "
        "(as LOCKSTEP_MAX_BATCH_SIZE=64). Flags win over the environment, the environment over the file.",
        allow_abbrev=False,
    )
    add_options(serve)
    serve.set_defaults(run=_serve)


def _add_sshd(commands: argparse._SubParsersAction[_Parser]) -> None:
    sshd = commands.add_parser(
        "sshd",
        help="wait for mpirun in a worker pod",
        description="Run an ssh server through which mpirun starts this pod's ranks. "
        "Only the group's own key is let in.",
        allow_abbrev=False,
    )
    sshd.add_argument("--port", type=int, default=contract.SSH_PORT, help="port to listen on (default: %(default)s)")
    sshd.set_defaults(run=_sshd)


def _add_bench(commands: argparse._SubParsersAction[_Parser]) -> None:
    bench = commands.add_parser(
        "bench", help="measure one part of the worker here", description="Measure one part of the worker here."
    )
    parts = bench.add_subparsers(dest="part", metavar="PART", required=True)
    update = parts.add_parser("update", help="host time of update_requests, batched and per request")
    update.add_argument("--batch", type=_positive, default=1024, help="rows of a step (default: %(default)s)")
    update.add_argument("--repetitions", type=_positive, default=2000, help="timed calls (default: %(default)s)")
    update.set_defaults(measure=_bench_update)
    exchange = parts.add_parser("exchange", help="collectives, bytes and time of a step's exchange")
    exchange.add_argument("--ranks", type=_positive, default=2, help="ranks on this host (default: %(default)s)")
    exchange.add_argument("--steps", type=_positive, default=300, help="timed steps of a kind (default: %(default)s)")
    exchange.set_defaults(measure=_bench_exchange)
    idle = parts.add_parser("idle", help="what an idle group costs, and how soon a request wakes it")
    idle.add_argument("--ranks", type=_positive, default=2, help="ranks on this host (default: %(default)s)")
    idle.add_argument("--requests", type=_positive, default=200, help="timed wake-ups (default: %(default)s)")
    idle.add_argument("--seconds", type=_positive, default=12, help="of idling before them (default: %(default)s)")
    idle.set_defaults(measure=_bench_idle)
    serve = parts.add_parser("serve", help="latencies and rates of a running server, over HTTP and streamed")
    _add_bench_serve(serve)
    for part in (update, exchange, idle, serve):
        part.add_argument("--json", action="store_true", help="print the result on one line")
        part.set_defaults(run=_bench)


def _add_bench_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--url", required=True, help="the server, as http://127.0.0.1:8000")
    serve.add_argument("--model", required=True, metavar="NAME", help="the name that the server knows it by")
    serve.add_argument(
        "--concurrency", type=_positives, default=(1, 8, 32), metavar="N,...", help="levels (default: 1,8,32)"
    )
    serve.add_argument(
        "--requests", type=_positive, metavar="N", help="of each level (default: four a connection, at least 16)"
    )
    for name, default in (("input", 128), ("output", 64)):
        serve.add_argument(
            f"--{name}-length",
            type=_length,
            default=(default, default),
            metavar="N[:M]",
            help=f"{name} tokens, or from N to M drawn evenly (default: {default})",
        )
    serve.add_argument("--vocab-size", type=_positive, default=400, help="prompt ids lie below (default: %(default)s)")
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
    serve.set_defaults(measure=_bench_serve)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser with all subcommands."""
    parser = _Parser(
        prog="lockstep-worker",
        description="Serves large language models from a group of ranks that step together.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_serve, _add_sshd, _add_bench):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    try:
        arguments, unknown = build_parser().parse_known_args(argv)
        arguments.unknown = unknown
        run: Run = arguments.run
        return run(arguments)
    except ConfigError as error:
        return refuse(error)


if __name__ == "__main__":
    sys.exit(main())
