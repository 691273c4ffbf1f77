"""What clients ask of a server over HTTP, as lanes: a lane is one connection that asks for one thing after another.

- `steady`: all clients start together, one request each.
- `ttft`: the same with short outputs, for the time until the first token.
- `1k1k`, `8k1k`: InferenceX's shapes. Each client asks anew as soon as it was answered; a length is drawn evenly from
  0.8 of the full one up to it. Every client has the same number of requests, where InferenceX's share one queue.
- `arrivals`: streams that run on while a long prompt arrives each second. A stream that ends early begins another one,
  and all are cut when the seconds are over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

LENGTHS: Mapping[str, tuple[int, int]] = {
    "steady": (512, 256),
    "ttft": (512, 8),
    "1k1k": (1024, 1024),
    "8k1k": (8192, 1024),
    "arrivals": (512, 4096),
    "arriving": (8192, 16),
}
"""Tokens of prompt and output by workload; `arriving` are the prompts that come in between."""
NAMES = tuple(name for name in LENGTHS if name != "arriving")
CLOSED_LOOPS = ("1k1k", "8k1k")
_LEAST_SHARE = 0.8
_LEAD_S = 2.0
"""How long streams run before the first long prompt arrives: their own prompts must be through."""
_MANY = 64
"""Requests of a stream; it is cut long before."""
_FIRST_ID = 10
_WARM_OUTPUT = 16
_WARM_CLIENTS = 16
_WARM_S = 2


@dataclass(frozen=True, slots=True)
class Order:
    """One request: lengths in tokens, and the seed of its prompt."""

    prompt: int
    output: int
    seed: str

    def draw(self, vocab_size: int) -> list[int]:
        """Draw the prompt's ids, the same for every server."""
        return random.Random(self.seed).choices(range(_FIRST_ID, vocab_size), k=self.prompt)


@dataclass(frozen=True, slots=True)
class Lane:
    """One connection: it waits, asks for one thing after another, and may be cut; seconds from the common start."""

    orders: tuple[Order, ...]
    start_s: float = 0.0
    cut_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Workload:
    """A load that every server gets alike."""

    name: str
    """One of `NAMES`."""
    clients: int
    lengths: Mapping[str, tuple[int, int]]
    """As `LENGTHS`."""
    per_client: int = 2
    """Requests of each client in a closed loop."""
    seconds: int = 10
    """How many long prompts arrive, one a second."""

    @property
    def prompt(self) -> int:
        """Most tokens of a client's prompt."""
        return self.lengths[self.name][0]

    @property
    def output(self) -> int:
        """Most tokens of a client's output."""
        return self.lengths[self.name][1]

    @property
    def context(self) -> int:
        """Most tokens of any request."""
        return max(sum(self.lengths[name]) for name in self._names)

    @property
    def cache_tokens(self) -> int:
        """Most tokens that all requests may have at once."""
        arriving = self.seconds * sum(self.lengths["arriving"]) if self.name == "arrivals" else 0
        return self.clients * (self.prompt + self.output) + arriving

    @property
    def sequences(self) -> int:
        """Most requests that run at once."""
        return self.clients + (self.seconds if self.name == "arrivals" else 0)

    @property
    def window_s(self) -> tuple[float, float]:
        """From the first long prompt to a second after the last."""
        return _LEAD_S, _LEAD_S + self.seconds

    def describe(self) -> dict[str, Any]:
        """Say what it is, for a row."""
        own = {"per_client": self.per_client} if self.name in CLOSED_LOOPS else {}
        own |= {"seconds": self.seconds} if self.name == "arrivals" else {}
        lengths = {name: self.lengths[name] for name in self._names}
        return {"workload": self.name, "clients": self.clients, "lengths": lengths, **own}

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.name, "arriving") if self.name == "arrivals" else (self.name,)

    def lanes(self, seed: int) -> list[Lane]:
        """Lay out all connections; the clients' come first, then those of the long prompts."""
        if self.name == "arrivals":
            streams = [Lane(self._orders(seed, client, _MANY), 0.0, self.window_s[1]) for client in range(self.clients)]
            prompt, output = self.lengths["arriving"]
            return streams + [
                Lane((Order(prompt, output, f"{seed} long {number}"),), _LEAD_S + number)
                for number in range(self.seconds)
            ]
        count = self.per_client if self.name in CLOSED_LOOPS else 1
        return [Lane(self._orders(seed, client, count)) for client in range(self.clients)]

    def warm_up(self) -> Workload:
        """Make a short load of the same kind; long prompts come from few clients."""
        clients = min(self.clients, _WARM_CLIENTS) if self.name in CLOSED_LOOPS else self.clients
        prompt, output = self.lengths[self.name]
        lengths = {**self.lengths, self.name: (prompt, min(output, _WARM_OUTPUT))}
        return replace(self, clients=clients, lengths=lengths, per_client=1, seconds=min(self.seconds, _WARM_S))

    def _orders(self, seed: int, client: int, count: int) -> tuple[Order, ...]:
        rng = random.Random(f"{self.name} {seed} {client}")
        least = _LEAST_SHARE if self.name in CLOSED_LOOPS else 1.0

        def draw(most: int) -> int:
            return rng.randint(math.ceil(least * most), most)

        return tuple(
            Order(draw(self.prompt), draw(self.output), f"{seed} {client} {number}") for number in range(count)
        )
