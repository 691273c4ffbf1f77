"""The worker's configuration: the options of `serve`, filled from file, environment and flags, all faults at once.

Every option is declared once, in `contract.serve`: the parser, the checks, the help text, `docs/options.md` and the
operator's command line read the declaration.
Later sources win: the file named by `--config` or LOCKSTEP_CONFIG, then LOCKSTEP_<FIELD>, then flags. This module must
not know torch, MPI or HTTP, and it holds no secrets: it names the file that does.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep_worker.compile_cache import find_cache_faults
from lockstep_worker.contract.option import ENV_PREFIX, faults_of, options_of
from lockstep_worker.contract.serve import ServeOptions
from lockstep_worker.errors import ConfigError

_SERVICE_LINK = re.compile(r"^(tcp|udp|sctp)://")
"""What Kubernetes puts into LOCKSTEP_PORT or LOCKSTEP_METRICS_PORT when a Service is called so; it is not ours."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServeOptions):
    """The options of a group, checked.

    Raises:
        ConfigError: on construction, with every fault in `problems`.
    """

    def __post_init__(self) -> None:
        """Check every field, then what fields say together."""
        if not self.served_model_name:
            object.__setattr__(self, "served_model_name", Path(self.model).absolute().name)
        problems = list(faults_of(self))
        if problems := problems or list(self._conflicts()):
            raise ConfigError(problems)

    def _conflicts(self) -> Iterator[str]:
        if self.routing == "cache-aware" and not self.prefix_cache:
            yield "routing: cache-aware needs prefix_cache, which is off"
        if self.max_num_tokens < self.max_batch_size:
            yield (
                f"max_num_tokens: {self.max_num_tokens} is below max_batch_size, {self.max_batch_size}: "
                "each running request takes a token of every step"
            )
        if self.batch_invariant and not self.fast_path:
            yield "batch_invariant: needs fast_path, which is off"
        if self.batch_invariant and self.device == "cpu":
            yield "batch_invariant: on a GPU only, and device is cpu"
        last = self.metrics_port + self.world_size - 1
        if last > 65535:
            yield f"metrics_port: {self.metrics_port} plus a port for each of {self.world_size} ranks passes 65535"
        if self.metrics_port <= self.port <= last:
            yield f"port: {self.port} is taken by the ranks' metrics, {self.metrics_port} to {last}"

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self.tensor_parallel * self.data_parallel

    @property
    def is_cache_aware(self) -> bool:
        """Whether requests are routed by what the prefix caches hold."""
        return self.routing == "cache-aware" or (self.routing == "auto" and self.prefix_cache)

    def to_json(self) -> str:
        """Write all fields as one JSON object, as the ranks get it in argv."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Read what `to_json` wrote.

        Raises:
            ConfigError: it is not a JSON object, or a field is unknown, missing or wrong.
        """
        return _build([("JSON", _parse_table(text, "JSON", json.loads))])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and one flag for each field of `Config`, grouped; values stay text until `load_config`."""
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with any of the fields below")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options_of(Config).values():
        title = option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(option.flag, **option.argument())


def given_flags(arguments: argparse.Namespace) -> dict[str, object]:
    """Return what the flags of `add_options` were given, by field name; None where one was not."""
    return {name: getattr(arguments, name) for name in ("config", *options_of(Config))}


def load_config(flags: Mapping[str, object], environ: Mapping[str, str], *, unknown: Sequence[str] = ()) -> Config:
    """Join file, environment and flags into a checked configuration.

    Args:
        flags: what was given on the command line, by field name; `config` names a file. None means not given.
        environ: the process environment; an empty variable means not given.
        unknown: words of the command line that no flag took; each is a fault.

    Raises:
        ConfigError: with every fault of all sources.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = given.pop("config", environ.get(f"{ENV_PREFIX}CONFIG"))
    sources: list[tuple[str, Mapping[str, object]]] = []
    if path:
        sources.append((str(path), _read_file(Path(str(path)))))
    sources += [(variable, {name: value}) for variable, name, value in _from_environment(environ)]
    sources += [("--" + name.replace("_", "-"), {name: value}) for name, value in given.items()]
    problems = [f"command line: unknown argument {word}" for word in unknown]
    return _build(sources, problems, check_paths=True)


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, option in options_of(Config).items():
        value = environ.get(option.variable)
        if value and not _SERVICE_LINK.match(value):
            yield option.variable, name, value


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"config: cannot read {path}: {error}"]) from error
    return _parse_table(text, str(path), json.loads if path.suffix == ".json" else tomllib.loads)


def _parse_table(text: str, source: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        table = parse(text)
    except ValueError as error:  # JSONDecodeError and TOMLDecodeError alike
        raise ConfigError([f"config: {source} cannot be parsed: {error}"]) from error
    if not isinstance(table, dict):
        raise ConfigError([f"config: {source} must hold a table of fields, not {type(table).__name__}"])
    return table


def _build(
    sources: Sequence[tuple[str, Mapping[str, object]]], problems: Sequence[str] = (), *, check_paths: bool = False
) -> Config:
    """Read all sources, later ones winning, and report the faults of each source and of the whole together."""
    values, unreadable = _read_sources(sources)
    problems = [*problems, *unreadable]
    if "model" not in values and not any(problem.startswith("model:") for problem in problems):
        problems.append("model: missing; give --model DIR, LOCKSTEP_MODEL or `model` in the file")
    if check_paths:
        problems += _missing_paths(values)
    try:
        config = Config(**{"model": ".", **values})  # a stand-in, so that the other fields are checked all the same
    except ConfigError as error:
        raise ConfigError(problems + error.problems) from None
    if problems:
        raise ConfigError(problems)
    return config


def _read_sources(sources: Sequence[tuple[str, Mapping[str, object]]]) -> tuple[dict[str, Any], list[str]]:
    options, values, problems = options_of(Config), dict[str, Any](), list[str]()
    for source, table in sources:
        for name, raw in table.items():
            if name not in options:
                problems.append(f"{name}: unknown field (in {source}); `lockstep-worker serve --help` lists all")
                continue
            try:
                values[name] = options[name].read(raw)
            except ValueError as error:
                problems.append(f"{name}: {error} (in {source})")
    return values, problems


def _missing_paths(values: Mapping[str, Any]) -> Iterator[str]:
    model, key = values.get("model"), values.get("api_key_file")
    if model and not Path(model).is_dir():
        yield f"model: {model} is not a directory"
    if key and not Path(key).is_file():
        yield f"api_key_file: {key} is not a file"
    yield from find_cache_faults(values.get("compile_cache"))
