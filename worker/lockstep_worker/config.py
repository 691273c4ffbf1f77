"""The worker's configuration: one frozen dataclass, filled from file, environment and flags, all faults at once.

Every option is declared once, as a field of `Config`: the parser, the checks and the help text read the declaration.
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
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from lockstep_worker import contract
from lockstep_worker.contract.option import declare, faults_of, options_of
from lockstep_worker.errors import ConfigError

ENV_PREFIX = "LOCKSTEP_"
_SERVICE_LINK = re.compile(r"^(tcp|udp|sctp)://")
"""What Kubernetes puts into LOCKSTEP_PORT or LOCKSTEP_METRICS_PORT when a Service is called so; it is not ours."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that may be set about a group; the same on all its ranks.

    Raises:
        ConfigError: on construction, with every fault in `problems`.
    """

    model: str = declare(MISSING, "model", "directory with config.json, weights and tokenizer; required", metavar="DIR")
    served_model_name: str = declare(
        "", "model", "the name that clients ask for; default: the directory's name", metavar="NAME"
    )
    dtype: str = declare(
        "auto", "model", "number type of weights and KV cache", choices=("auto", "float32", "bfloat16", "float16")
    )
    max_model_len: int | None = declare(
        None, "model", "longest prompt plus output, in tokens; default: the model's own limit", low=2
    )

    host: str = declare(
        "127.0.0.1", "network", "address that the API and the ranks' metrics listen on", metavar="ADDRESS"
    )
    port: int = declare(contract.HTTP_PORT, "network", "port of the API", low=1, high=65535)
    metrics_port: int = declare(
        contract.RANK_METRICS_PORT, "network", "port of local rank 0's metrics; local rank r adds r", low=1, high=65535
    )
    api_key_file: str | None = declare(
        None, "network", "file with the API key that clients must send; default: no key", metavar="FILE"
    )

    tensor_parallel: int = declare(1, "group", "ranks that share each layer", low=1, high=1024)
    data_parallel: int = declare(
        1, "group", "copies of the model, each on --tensor-parallel ranks of its own", low=1, high=1024
    )
    routing: str = declare(
        "auto",
        "group",
        "which copy a request goes to: the one with the least to do, or the one that holds its prompt's beginning, "
        "unless that has too much to do; auto is cache-aware with the prefix cache, else least-loaded",
        choices=("auto", "least-loaded", "cache-aware"),
    )
    device: str = declare("auto", "group", "where the model runs", choices=("auto", "cpu", "cuda"))

    max_batch_size: int = declare(
        64, "engine", "requests that run at once on a copy of the model (slots)", low=1, high=1024
    )
    max_num_tokens: int = declare(
        2048, "engine", "tokens that one step may process on a copy of the model", low=1, high=1 << 20
    )
    max_queued: int = declare(4096, "engine", "requests that may wait; more are refused with 429", low=1)
    request_timeout: float = declare(
        0.0, "engine", "seconds from a request's arrival to its end, then 504; 0 is off", low=0, metavar="SECONDS"
    )
    overlap: bool = declare(True, "engine", "launch a step before the previous one's tokens are read")

    block_size: int = declare(16, "KV cache", "tokens in one block", low=1, high=1024)
    num_blocks: int | None = declare(None, "KV cache", "blocks per rank; default: as many as the memory holds", low=1)
    kv_cache_memory_fraction: float = declare(
        0.9, "KV cache", "part of the free GPU memory for the cache; on CPU, of --cpu-kv-cache-mib", above=0, high=1
    )
    cpu_kv_cache_mib: int = declare(512, "KV cache", "memory per rank that the cache may take on CPU, in MiB", low=1)
    prefix_cache: bool = declare(True, "KV cache", "reuse the blocks of equal prompt beginnings")

    hang_timeout: float = declare(
        300.0, "health", "seconds without progress after which the group is ended; 0 is off", low=0, metavar="SECONDS"
    )
    drain_timeout: float = declare(
        120.0, "health", "seconds that running requests get to finish after SIGTERM or Ctrl-C", low=0, metavar="SECONDS"
    )
    log_level: str = declare(
        "INFO", "health", "least level that is logged", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    debug_checks: bool = declare(
        False, "health", "check the whole block pool after every step; for tests, a large pool takes seconds"
    )

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
    for name in options_of(Config):
        variable = ENV_PREFIX + name.upper()
        value = environ.get(variable)
        if value and not _SERVICE_LINK.match(value):
            yield variable, name, value


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
