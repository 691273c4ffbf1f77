"""The recall model's tasks. Every answer depends on the whole prompt, so that a wrong block, position or route shows.

    recall   "k=4217 Q=0731 ... ? Q k"  ->  "Q=0731 k=4217"   the table in the message, an earlier turn or the system message
    copy     "COPY fkQab"               ->  "fkQab"
    reverse  "REVERSE fkQab"            ->  "baQkf"

A conversation is a list of messages; the last one is the assistant's right answer. Standard library only.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator

LETTERS = string.ascii_letters

Message = dict[str, str]
Conversation = list[Message]

RECALL, COPY, REVERSE = 0, 1, 2
SIZE_LIMITS = {RECALL: (4, 40), COPY: (6, 48), REVERSE: (4, 16)}
"""For each task, the largest size at the start of the curriculum and at its end."""


class Table:
    """Random letters, each with a four-digit number."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.keys = rng.sample(LETTERS, size)
        self.values = {key: f"{rng.randrange(10000):04d}" for key in self.keys}
        self.text = " ".join(f"{key}={self.values[key]}" for key in self.keys)

    def ask(self, rng: random.Random, questions: int) -> tuple[str, str]:
        """Return a question for some keys, repeats allowed, and its answer."""
        asked = [rng.choice(self.keys) for _ in range(questions)]
        return "? " + " ".join(asked), " ".join(f"{key}={self.values[key]}" for key in asked)


def turn(user: str, answer: str) -> Conversation:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]


def recall(rng: random.Random, size: int, questions: int, turns: int = 1, *, in_system: bool = False) -> Conversation:
    """Ask for `questions` of `size` pairs in each of `turns` turns; the table is in the first turn or the system message."""
    table = Table(rng, size)
    messages = [{"role": "system", "content": table.text}] if in_system else []
    for index in range(turns):
        question, answer = table.ask(rng, questions)
        head = table.text + " " if index == 0 and not in_system else ""
        messages += turn(head + question, answer)
    return messages


def copy(rng: random.Random, size: int) -> Conversation:
    text = random_letters(rng, size)
    return turn("COPY " + text, text)


def reverse(rng: random.Random, size: int) -> Conversation:
    text = random_letters(rng, size)
    return turn("REVERSE " + text, text[::-1])


def random_letters(rng: random.Random, size: int) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(size))


def endless_conversation(rng: random.Random, limits: dict[int, int]) -> Iterator[tuple[int | None, Conversation]]:
    """Yield (task, messages) for ever: at most one table, asked at any later turn, between copies and reversals.

    Args:
        limits: for each task, the largest size.
    """
    size = rng.randint(2, limits[RECALL])
    table = None
    if rng.random() < 0.3:
        table = Table(rng, size)
        yield None, [{"role": "system", "content": table.text}]
    while True:
        kind = rng.random()
        if kind < 0.45:
            head = ""
            if table is None:
                table = Table(rng, size)
                head = table.text + " "
            question, answer = table.ask(rng, rng.randint(1, 8))
            yield RECALL, turn(head + question, answer)
        elif kind < 0.78:
            yield COPY, copy(rng, max(rng.randint(2, limits[COPY]) for _ in range(2)))
        else:
            yield REVERSE, reverse(rng, rng.randint(2, limits[REVERSE]))


HELD_OUT: dict[str, Callable[[random.Random], Conversation]] = {
    "recall8": lambda rng: recall(rng, 8, 4),
    "recall16": lambda rng: recall(rng, 16, 4),
    "recall30": lambda rng: recall(rng, 30, 4),
    "recall40": lambda rng: recall(rng, 40, 8),
    "recall24x3turns": lambda rng: recall(rng, 24, 3, 3),
    "recall30system": lambda rng: recall(rng, 30, 4, in_system=True),
    "copy16": lambda rng: copy(rng, 16),
    "copy48": lambda rng: copy(rng, 48),
    "reverse8": lambda rng: reverse(rng, 8),
    "reverse16": lambda rng: reverse(rng, 16),
}
"""The sets that exact match is measured on; seeds from 10,000 on are never trained on."""
