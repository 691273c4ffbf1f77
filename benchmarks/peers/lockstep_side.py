"""Lockstep's process: the loop of `bench decode`, which is a rank's own, fed with the rounds that are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.peers.common import Limits, open_channel, own_flags, read_rounds, tell_ready, tell_round
from benchmarks.peers.lockstep_options import choose_options
from lockstep_worker.bench.offline.session import Session, Workload
from lockstep_worker.wire.messages import NewRequest


def main() -> None:
    """Load, then answer rounds; the loop waits for the next one in the middle of a step without work."""
    channel, start = open_channel(), time.perf_counter()
    limits = Limits.from_command_line()
    options = choose_options(limits, own_flags())
    session = Session(Workload(limits.shape, 1, 1, 0.0), limits.max_sequences, options)

    def script() -> Iterator[list[NewRequest]]:
        tell_ready(channel, "lockstep", options, time.perf_counter() - start)
        for asked in read_rounds():
            workload = Workload(limits.shape, asked.prompt, asked.output, asked.temperature)
            requests = workload.requests(asked.batch, asked.output, asked.seed)
            before, begin = session.outlet.num_tokens, time.perf_counter()
            yield requests
            tell_round(channel, asked, session.outlet.num_tokens - before, session.outlet.steps_s[-1] - begin)

    session.run(script())


if __name__ == "__main__":
    main()
