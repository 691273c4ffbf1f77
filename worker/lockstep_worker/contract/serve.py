"""The options of `lockstep-worker serve`, each declared once, and the command line that is written from their names.

The worker's `Config` adds checks and sources to these declarations; whoever starts a worker names options and writes no
flag by hand. Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from lockstep_worker.contract import HTTP_PORT, PROGRAM, RANK_METRICS_PORT
from lockstep_worker.contract.option import Option, declare, options_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Everything that may be set about a group; the same on all its ranks."""

    model: str = declare(MISSING, "model", "directory with config.json, weights and tokenizer", metavar="DIR")
    served_model_name: str = declare(
        "", "model", "the name that clients ask for", unset="the directory's name", metavar="NAME"
    )
    dtype: str = declare(
        "auto", "model", "number type of weights and KV cache", choices=("auto", "float32", "bfloat16", "float16")
    )
    max_model_len: int | None = declare(
        None, "model", "longest prompt plus output, in tokens", unset="the model's own limit", low=2
    )

    host: str = declare(
        "127.0.0.1", "network", "address that the API and the ranks' metrics listen on", metavar="ADDRESS"
    )
    port: int = declare(HTTP_PORT, "network", "port of the API", low=1, high=65535)
    metrics_port: int = declare(
        RANK_METRICS_PORT, "network", "port of local rank 0's metrics; local rank r adds r", low=1, high=65535
    )
    api_key_file: str | None = declare(
        None, "network", "file with the API key that clients must send", unset="no key", metavar="FILE"
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
    overlap: bool = declare(True, "engine", "begin a step before the previous one's tokens are read")

    graphs: bool = declare(
        True, "engine", "replay decodes as CUDA graphs, captured at start; on a GPU that holds the whole model"
    )
    fast_path: bool = declare(
        True, "engine", "run dense models by this engine's own kernels where they serve; on a GPU only"
    )
    batch_invariant: bool = declare(
        False, "engine", "compute a request bit for bit the same in any batch; dense models on a GPU only, slower"
    )

    compile_cache: str | None = declare(
        None,
        "engine",
        "folder that keeps what Triton and torch compile from start to start; it must be there on every host, writable",
        unset="the libraries' own folders",
        metavar="DIR",
    )

    block_size: int = declare(16, "KV cache", "tokens in one block", low=1, high=1024)
    num_blocks: int | None = declare(None, "KV cache", "blocks per rank", unset="as many as the memory holds", low=1)
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


def serve_command(values: Mapping[str, Any], extra_args: Sequence[str] = ()) -> list[str]:
    """Build the launcher container's command line.

    Args:
        values: by option, in the order of their flags; None leaves a flag out, so that the worker's default holds, and
            so does a boolean's default.
        extra_args: more words, behind the options.

    Raises:
        ValueError: there is no such option.
    """
    words = [word for option in _find(values) for word in option.write(values[option.name])]
    return [PROGRAM, "serve", *words, *extra_args]


def written_flags(names: Iterable[str]) -> list[str]:
    """Return the flags that `serve_command` can write for these options, in their order.

    Raises:
        ValueError: there is no such option.
    """
    return [option.written_flag for option in _find(names)]


def _find(names: Iterable[str]) -> Iterator[Option]:
    options = options_of(ServeOptions)
    for name in names:
        if name not in options:
            raise ValueError(f"{name}: `lockstep-worker serve` has no such option")
        yield options[name]
