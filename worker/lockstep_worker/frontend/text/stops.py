"""Stop strings: which text may go out, and where it ends.

The result depends on the characters alone, never on how they were cut into pieces: the output ends at the first
character that completes a stop string; of several completed there, the longest counts. Knows no tokens and no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Holds back text that may be the beginning of a stop string, one Knuth-Morris-Pratt automaton for each.

    Args:
        stops: the stop strings, none of them empty.
    """

    __slots__ = ("_failures", "_held", "_states", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(stops)
        self._failures = [_failures(stop) for stop in stops]
        self._states = [0] * len(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text.

        Returns:
            What may go out now, and whether a stop string was met: then that is the last of it.
        """
        if not self._held and not any(stop[0] in text for stop in self._stops):
            return text, False
        whole = self._held + text
        for end, character in enumerate(text, len(self._held) + 1):
            if length := self._advance(character):
                self._held = ""
                return whole[: end - length], True
        cut = len(whole) - max(self._states)
        self._held = whole[cut:]
        return whole[:cut], False

    def flush(self) -> str:
        """Return what was held back: the output ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Take one character; return the length of the longest stop string that it completes, or 0."""
        longest = 0
        for index, stop in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != character:
                state = self._failures[index][state]
            state += stop[state] == character
            self._states[index] = state
            if state == len(stop):
                longest = max(longest, state)
        return longest


def _failures(stop: str) -> list[int]:
    """Return for each length of a matched prefix the length of its longest proper border."""
    table = [0] * (len(stop) + 1)
    border = 0
    for length in range(2, len(stop) + 1):
        while border and stop[border] != stop[length - 1]:
            border = table[border]
        border += stop[border] == stop[length - 1]
        table[length] = border
    return table
