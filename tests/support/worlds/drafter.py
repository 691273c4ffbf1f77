"""A drafter for tests: it knows what a plain run drew, and is wrong now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec

from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.wire.messages import NewRequest


@dataclass
class Drafter:
    """Looks at the table before each plan of a scheduler, and proposes what follows.

    Rows for which it draws a lot wait for their tokens, as with overlap they must.
    """

    rng: random.Random
    known: dict[int, list[int]]
    """What each request draws without drafts, by handle."""
    right: float = 0.8
    """How often a proposed token is the right one."""
    plans: list[Plan] = field(default_factory=list)
    left_in_flight: int = 0
    """Rows that left their slot, preempted or cancelled, while drafts of theirs were in flight."""

    @property
    def drafted_rows(self) -> int:
        """How many rows of all plans had drafts."""
        return sum(int((plan.draws > 1).sum()) for plan in self.plans)

    def attach(self, scheduler: Scheduler) -> Drafter:
        """From here on the scheduler's plans are made after a look."""
        schedule, release = scheduler.schedule, scheduler.table.release

        def look_first() -> Plan:
            self.propose(scheduler)
            self.plans.append(schedule())
            return self.plans[-1]

        def note(slot: int) -> object:
            self.left_in_flight += int(scheduler.table.in_flight[slot]) > 1 and bool(scheduler.table.drafting[slot])
            return release(slot)

        scheduler.schedule = look_first  # type: ignore[method-assign]
        scheduler.table.release = note  # type: ignore[method-assign, assignment]
        return self

    def propose(self, scheduler: Scheduler) -> None:
        """Propose for every row that may have drafts and whose tokens are known."""
        table = scheduler.table
        for sequence in [one for one in table.sequences if one is not None and table.can_draft(one.slot)]:
            slot = sequence.slot
            table.drafting[slot] = True
            if table.in_flight[slot] or table.length[slot] - table.computed[slot] != 1:
                continue
            done = int(table.length[slot]) - sequence.prompt_length
            tokens = self.known[sequence.handle][done : done + self.rng.randrange(table.drafts.shape[1] + 1)]
            table.propose(slot, [one if self.rng.random() < self.right else (one + 1) % 50 for one in tokens])


def mostly_draftable(rng: random.Random, requests: list[NewRequest]) -> list[NewRequest]:
    """Take from most requests what keeps them from having drafts."""
    plain = {"stop_token_ids": (), "logprobs": -1, "repetition_penalty": 1.0, "frequency_penalty": 0.0}
    return [
        msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, **plain)) if rng.random() < 0.8 else one
        for one in requests
    ]
