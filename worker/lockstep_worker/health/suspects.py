"""Whom to blame for a hang: a pure decision from what the ranks answered, and the sentence that says so.

Every rank notices a hang at about the same time, and the first one to speak is heard. So each must come to the same
answer from where it stands, and say that it does not know rather than guess.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep_worker.phase import Standing

_MAX_NAMED = 8


class Silence(enum.Enum):
    """Why a rank told no standing."""

    NO_ANSWER = enum.auto()
    """Nothing came back in time: the process, its host or its network stands still."""
    UNREACHABLE = enum.auto()
    """Refused, cut, or not understood: it may have ended because it noticed the same hang. No reason to blame it."""


Answer = Standing | Silence


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is stuck, in one sentence, and the rank to blame where that is known."""

    rank: int | None
    reason: str


def judge(answers: Sequence[Answer], me: int, nodes: Sequence[str], seen: str) -> Verdict:
    """Say who is stuck.

    Args:
        answers: each rank's, by rank; one's own is a standing.
        me: the rank that noticed the hang.
        nodes: the name of each rank's node.
        seen: what it noticed, as the detector says it.
    """
    suspects = find_suspects(answers)
    if len(answers) == 1:
        return Verdict(me, f"rank {me} is stuck in {answers[me]}: {seen}")
    where = "" if me in suspects or not suspects else f", in {answers[me]}"
    claim = _accuse(suspects, answers, nodes) if suspects else f"no rank stands out ({_explain(answers, nodes)})"
    return Verdict(_pick(suspects, nodes), f"{claim}: rank {me} saw {seen}{where}")


def find_suspects(answers: Sequence[Answer]) -> list[int]:
    """Find the ranks that the others wait for; none when nothing tells them apart.

    A rank that gives no answer comes before one that answers, for its peers' standings may follow from it. Of those
    that answer, the ones that are furthest behind are waited for. Who hears nobody may be cut off itself.
    """
    silent = [rank for rank, answer in enumerate(answers) if answer is Silence.NO_ANSWER]
    if silent:
        return silent if len(silent) < len(answers) - 1 or len(silent) == 1 else []
    standings = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, Standing)}
    last = min(standings.values())
    behind = [rank for rank, standing in standings.items() if standing == last]
    return behind if len(behind) < len(standings) or len(answers) == 1 else []


def _pick(suspects: list[int], nodes: Sequence[str]) -> int | None:
    """Choose the rank to record: the only suspect, or one that stands for the one node of several that they share."""
    on_one_node = len(set(nodes)) > 1 and len({nodes[rank] for rank in suspects}) == 1
    return suspects[0] if len(suspects) == 1 or on_one_node else None


def _accuse(suspects: list[int], answers: Sequence[Answer], nodes: Sequence[str]) -> str:
    is_one, answer = len(suspects) == 1, answers[suspects[0]]
    if answer is Silence.NO_ANSWER:
        return f"{_name(suspects, nodes)} {'does' if is_one else 'do'} not answer"
    return f"{_name(suspects, nodes)} {'is' if is_one else 'are'} stuck in {answer}"


def _explain(answers: Sequence[Answer], nodes: Sequence[str]) -> str:
    if Silence.NO_ANSWER in answers:
        return "no other rank answers"
    standing = next(answer for answer in answers if isinstance(answer, Standing))
    if lost := [rank for rank, answer in enumerate(answers) if answer is Silence.UNREACHABLE]:
        return f"{_name(lost, nodes)} cannot be asked, the others are in {standing}"
    return f"all are in {standing}"


def _name(ranks: list[int], nodes: Sequence[str]) -> str:
    """List ranks, each with its node where there are several."""
    has_nodes = len(set(nodes)) > 1
    named = [f"{rank} ({nodes[rank]})" if has_nodes else str(rank) for rank in ranks[:_MAX_NAMED]]
    if len(ranks) > _MAX_NAMED:
        named.append(f"{len(ranks) - _MAX_NAMED} more")
    *others, last = named
    return f"rank {last}" if not others else f"ranks {', '.join(others)} and {last}"
