"""What an argument of a benchmark may be: each reads its text or says what was wanted."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def positives(text: str) -> tuple[int, ...]:
    """Such numbers with commas between them."""
    return tuple(positive(part) for part in text.split(","))


def length(text: str) -> tuple[int, int]:
    """A length, or the least and the most one."""
    least, _, most = text.partition(":")
    span = positive(least), positive(most or least)
    if span[0] > span[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: the least is above the most")
    return span


def duration(text: str) -> float:
    """A finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
