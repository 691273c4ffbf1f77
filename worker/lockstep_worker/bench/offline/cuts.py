"""`bench cuts`: which cuts of a decode step are fastest on this GPU, for the table that `routes` has as data.

Every trial is a whole step, captured and replayed, since what a kernel costs depends on the ones beside it. One cut
after the other is varied and the best kept. Networks have few layers: enough that no cache of the GPU holds them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.candidates import splits_for, tiles_for, vectors_for
from lockstep_worker.bench.offline.network import dummy_network
from lockstep_worker.bench.offline.shapes import SHAPES
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels import chain
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.kernels.draw import DrawInput
from lockstep_worker.model.dense.decode import cuts_for
from lockstep_worker.model.dense.decode_batch import BatchStep
from lockstep_worker.model.dense.decode_input import StepInput
from lockstep_worker.model.dense.decode_one import RowStep
from lockstep_worker.model.dense.recognise import take_weights
from lockstep_worker.model.dense.routes.cuts import Cuts
from lockstep_worker.model.dense.routes.uses import HEADS, Use, bucket_of, padded
from lockstep_worker.model.dense.weights import DenseWeights

_BLOCK_SIZE = 16
_REPLAYS, _ROUNDS = 10, 5
_BETTER = 0.997
"""A trial must take less than this part of the best so far: rounds of one graph differ by less."""
_COMPILERS = 14

Report = Callable[[dict[str, Any]], None]


class Bench:
    """A network's decode steps of one number of rows, and what they took with the cuts tried so far.

    Args:
        weights: a few layers of the network.
        rows: of the step.
        context: tokens of each row.
        drawn: whether rows are drawn at a temperature.
        report: gets a row for each trial.
    """

    def __init__(self, weights: DenseWeights, rows: int, context: int, drawn: bool, report: Report) -> None:
        self._weights, self._rows, self._report = weights, rows, report
        device = weights.embedding.device
        blocks = context // _BLOCK_SIZE + 1
        self._cache = KVCache(
            num_layers=len(weights.layers),
            num_blocks=rows * blocks,
            block_size=_BLOCK_SIZE,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            dtype=weights.embedding.dtype,
            device=device,
        )
        for tensor in (*self._cache.keys, *self._cache.values):
            tensor.normal_()  # a GPU that multiplies zeros takes less power, and runs faster
        self._step = StepInput(
            tokens=torch.arange(rows, device=device) * 977 % weights.embedding.shape[0],
            positions=torch.full((rows,), context, device=device),
            block_tables=torch.randperm(rows * blocks, device=device).int().view(rows, blocks),
        )
        self.drawn = drawn
        self._draw = _drawing(rows, device) if drawn else None
        self.cuts = cuts_for(device)
        self.best_ms = 0.0

    def begin(self) -> None:
        """Time what stands, once the GPU's clock is up."""
        for _ in range(3):
            self.best_ms = self._time(self.cuts)
        self._report({"what": "base", "ms": round(self.best_ms, 4)})

    def vary(self, what: str, trials: Sequence[tuple[Any, Cuts]]) -> None:
        """Try cuts and keep the fastest; each comes with how it is called."""
        self._compile([cuts for _, cuts in trials])
        took: list[tuple[str, float | str]] = []
        for name, cuts in trials:
            try:
                took.append((str(name), milliseconds := round(self._time(cuts), 4)))
            except Exception as error:  # noqa: BLE001 - a cut that this GPU cannot run is one that did not win
                took.append((str(name), f"{type(error).__name__}: {error}"[:80]))
                continue
            if milliseconds < self.best_ms * _BETTER:
                self.best_ms, self.cuts = milliseconds, cuts
        self._report({"what": what, "ms": round(self.best_ms, 4), "trials": took})

    def _compile(self, wanted: Sequence[Cuts]) -> None:
        """Compile all kernels of some steps at once, on all cores; what does not compile fails when it is timed."""
        shallow = dataclasses.replace(self._weights, layers=self._weights.layers[:1])
        with _compiling_only(), ThreadPoolExecutor(_COMPILERS) as pool:
            for future in [pool.submit(self._run, shallow, cuts) for cuts in wanted]:
                future.exception()

    def _run(self, weights: DenseWeights, cuts: Cuts) -> None:
        self._make(weights, cuts).best(self._step, self._draw)

    def _make(self, weights: DenseWeights, cuts: Cuts) -> RowStep | BatchStep:
        if self._rows == 1:
            return RowStep(weights, self._cache, cuts)
        return BatchStep(weights, self._cache, self._rows, cuts)

    def _time(self, cuts: Cuts) -> float:
        """The fewest milliseconds of a step."""
        step = self._make(self._weights, cuts)
        step.best(self._step, self._draw)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.best(self._step, self._draw)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        took = []
        for _ in range(_ROUNDS):
            begin.record()
            for _ in range(_REPLAYS):
                graph.replay()
            end.record()
            torch.cuda.synchronize()
            took.append(begin.elapsed_time(end) / _REPLAYS)
        return min(took)


def measure_cuts(
    shape: str, batches: Sequence[int], layers: int, context: int, drawn: bool, seconds: float, report: Report
) -> None:
    """Try cuts for each batch, and report what won as lines for the table.

    Args:
        shape: a name in `SHAPES`.
        batches: numbers of rows; those of `uses.BUCKETS` and one row are what the table has.
        layers: of the network that is measured.
        context: tokens of each row.
        drawn: whether rows are drawn at a temperature.
        seconds: after which no further cut of a batch is tried.
        report: gets a row for each kind of cut.
    """
    network = dummy_network({**SHAPES[shape], "num_hidden_layers": layers}, torch.device("cuda"), torch.bfloat16)
    weights = take_weights(network, context + 2)
    assert isinstance(weights, DenseWeights), weights
    for rows in batches:
        start = time.perf_counter()

        def tell(row: dict[str, Any], rows: int = rows, start: float = start) -> None:
            report({"shape": shape, "rows": rows, **row, "s": round(time.perf_counter() - start, 1)})

        bench = Bench(weights, rows, context, drawn, tell)
        bench.begin()
        for vary in _one_row(bench, weights) if rows == 1 else _many_rows(bench, weights, rows):
            if time.perf_counter() - start > seconds:
                break
            vary()
        report({"shape": shape, "rows": rows, "won": _won(bench.cuts), "device": describe_device("cuda")})


def _uses(weights: DenseWeights, drawn: bool) -> list[tuple[Use, int, int]]:
    """What a step multiplies with, and the weights' shapes."""
    layer = weights.layers[0]
    of_layer: list[tuple[Use, torch.Tensor]] = [
        ("residual", layer.out),
        ("residual", layer.down),
        ("gate_up", layer.gate_up),
        ("qkv", layer.qkv),
        ("drawn_head" if drawn else "head", weights.head),
    ]
    return [(use, *weight.shape) for use, weight in of_layer]


def _many_rows(bench: Bench, weights: DenseWeights, rows: int) -> Iterator[Callable[[], None]]:
    def attention() -> None:
        bench.vary(
            "attention",
            [(cut, dataclasses.replace(bench.cuts, splits={rows: cut})) for cut in splits_for(rows)],
        )

    def tiles(use: Use, out: int, length: int) -> None:
        tried = [*tiles_for(use, padded(rows), out, length, bench.cuts.multiprocessors), None]
        what, key = f"{use} {out} {length}", (bucket_of(padded(rows)), use, out, length)

        def with_tile(cut: Tile | None) -> Cuts:
            return dataclasses.replace(bench.cuts, tiles={**bench.cuts.tiles, key: cut})

        bench.vary(what, [(cut, with_tile(cut)) for cut in tried if cut is not None or use not in HEADS])
        won = bench.cuts.tile(use, padded(rows), out, length)
        if won is not None:
            others = [ahead for ahead in (0, 1024, 4096) if ahead != won.ahead]
            fetching = [(ahead, with_tile(dataclasses.replace(won, ahead=ahead))) for ahead in others]
            bench.vary(f"{what} ahead", fetching)

    yield attention
    for use, out, length in _uses(weights, bench.drawn):
        yield lambda use=use, out=out, length=length: tiles(use, out, length)  # type: ignore[misc]
    yield lambda: _chain(bench)


def _one_row(bench: Bench, weights: DenseWeights) -> Iterator[Callable[[], None]]:
    def vectors(use: Use, out: int, length: int) -> None:
        def with_vector(cut: Vector) -> Cuts:
            return dataclasses.replace(bench.cuts, vectors={**bench.cuts.vectors, (use, out, length): cut})

        bench.vary(f"{use} {out} {length}", [(cut, with_vector(cut)) for cut in vectors_for(use, length)])

    yield lambda: bench.vary(
        "attention", [(cut, dataclasses.replace(bench.cuts, splits={1: cut})) for cut in splits_for(1)]
    )
    for use, out, length in _uses(weights, drawn=False):
        yield lambda use=use, out=out, length=length: vectors(use, out, length)  # type: ignore[misc]
    yield lambda: _chain(bench)


def _chain(bench: Bench) -> None:
    modes = {"off": chain.OFF, "at once": chain.AT_ONCE, "after the wait": chain.AFTER_WAIT}
    bench.vary("chain", [(name, dataclasses.replace(bench.cuts, chain=mode)) for name, mode in modes.items()])


def _won(cuts: Cuts) -> dict[str, Any]:
    """The lines that the table has not yet."""
    standing = Cuts(cuts.multiprocessors)
    tiles = [
        {"rows": bucket, "use": use, "out": out, "length": length, "tile": tile and dataclasses.asdict(tile)}
        for (bucket, use, out, length), tile in cuts.tiles.items()
        if (bucket, use, out, length) not in standing.tiles or standing.tiles[bucket, use, out, length] != tile
    ]
    vectors = [
        {"use": use, "out": out, "length": length, **dataclasses.asdict(vector)}
        for (use, out, length), vector in cuts.vectors.items()
        if standing.vectors.get((use, out, length)) != vector
    ]
    splits = {rows: dataclasses.asdict(split) for rows, split in cuts.splits.items()}
    return {"tiles": tiles, "vectors": vectors, "splits": splits, "chain": cuts.chain}


def _drawing(rows: int, device: torch.device) -> DrawInput:
    table = torch.ones((rows, 2), dtype=torch.int64, device=device)
    return DrawInput(torch.arange(rows, device=device), table[:, 0], table[:, 1], torch.ones(rows, device=device))


@contextmanager
def _compiling_only() -> Iterator[None]:
    """Have Triton compile what is called, and run nothing."""
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *arguments, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    try:
        yield
    finally:
        JITFunction.run = run
