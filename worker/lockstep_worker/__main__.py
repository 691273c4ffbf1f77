"""The command line: `lockstep-worker serve | sshd | bench | profile`.

Each subcommand registers itself: `bench` has its own command line, and that of `serve` follows from its options.
Nothing here imports torch, numpy or MPI, so that `--help` and `sshd` start at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from lockstep_worker import contract
from lockstep_worker.bench.command import add_bench
from lockstep_worker.bench.offline.command import add_profile
from lockstep_worker.config import add_options, given_flags, load_config
from lockstep_worker.errors import ConfigError
from lockstep_worker.supervisor.sshd import run_sshd
from lockstep_worker.supervisor.supervise import supervise
from lockstep_worker.supervisor.termination import refuse

Run = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print, so that every wrong input ends in one place with one exit code."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError([f"command line: {message}"])


def _serve(arguments: argparse.Namespace) -> int:
    return supervise(load_config(given_flags(arguments), os.environ, unknown=arguments.unknown), os.environ)


def _sshd(arguments: argparse.Namespace) -> int:
    return run_sshd(port=arguments.port)


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
    about = "measure one part of the worker here"
    add_bench(commands.add_parser("bench", help=about, description=about.capitalize() + "."))


def _add_profile(commands: argparse._SubParsersAction[_Parser]) -> None:
    about = "show where a decode step's time goes here, by range and by kernel"
    add_profile(commands.add_parser("profile", help=about, description=about.capitalize() + "."))


def build_parser() -> argparse.ArgumentParser:
    """Build the parser with all subcommands."""
    parser = _Parser(
        prog="lockstep-worker",
        description="Serves large language models from a group of ranks that step together.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_serve, _add_sshd, _add_bench, _add_profile):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    try:
        arguments, unknown = build_parser().parse_known_args(argv)
        arguments.unknown = unknown
        run: Run = arguments.run
        if unknown and run is not _serve:  # which reports these words together with all its other faults
            raise ConfigError([f"command line: unknown argument {word}" for word in unknown])
        return run(arguments)
    except ConfigError as error:
        return refuse(error)


if __name__ == "__main__":
    sys.exit(main())
