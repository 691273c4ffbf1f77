"""Who is blamed for a hang, as a table; the sentence for people; and that all ranks come to the same answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_worker.health.suspects import Answer, Silence, find_suspects, judge
from lockstep_worker.phase import LOADING, Phase, Standing

SEEN = "no progress for 4.2 s (timeout 4 s)"
MUTE, GONE = Silence.NO_ANSWER, Silence.UNREACHABLE
COLLECT, EXCHANGE, ADMIT, FORWARD = (
    Standing(812, phase) for phase in (Phase.COLLECT, Phase.EXCHANGE, Phase.ROUTE, Phase.FORWARD)
)
NEXT_COLLECT, NEXT = Standing(813, Phase.COLLECT), Standing(813, Phase.EXCHANGE)

TABLE = [
    pytest.param([EXCHANGE, MUTE], [1], id="stopped, its peer in the exchange"),
    pytest.param([FORWARD, MUTE], [1], id="stopped, its peer in a collective of the forward"),
    pytest.param([FORWARD, EXCHANGE, MUTE], [2], id="stopped, and a peer behind because of it"),
    pytest.param([EXCHANGE, EXCHANGE, MUTE, MUTE], [2, 3], id="a stopped node"),
    pytest.param([EXCHANGE, MUTE, MUTE], [], id="nobody answers: cut off itself"),
    pytest.param([MUTE, EXCHANGE, GONE], [0], id="stopped, and a peer that has ended"),
    pytest.param([FORWARD, NEXT], [0], id="stuck in the forward, its peer in the next exchange"),
    pytest.param([COLLECT, EXCHANGE], [0], id="posted, but stuck in the tail of its step"),
    pytest.param([COLLECT, ADMIT], [0], id="the exchange done at its peer already"),
    pytest.param([NEXT_COLLECT, FORWARD], [1], id="a later tail is no fault"),
    pytest.param([Standing(811, Phase.IDLE), EXCHANGE], [0], id="stuck in the park"),
    pytest.param([LOADING, Standing(1, Phase.EXCHANGE)], [0], id="still loading"),
    pytest.param([NEXT, NEXT, FORWARD, FORWARD], [2, 3], id="one replica of two"),
    pytest.param([NEXT, FORWARD, GONE], [1], id="a better suspect than one that has ended"),
    pytest.param([EXCHANGE, GONE], [], id="ended, perhaps because it noticed the same"),
    pytest.param([EXCHANGE, GONE, GONE], [], id="all others ended"),
    pytest.param([FORWARD, FORWARD], [], id="both in the forward"),
    pytest.param([EXCHANGE, EXCHANGE, EXCHANGE], [], id="all in the exchange"),
    pytest.param([FORWARD], [0], id="alone"),
]


@pytest.mark.parametrize(("answers", "suspects"), TABLE)
def test_the_ranks_that_the_others_wait_for_are_the_suspects(answers: list[Answer], suspects: list[int]) -> None:
    assert find_suspects(answers) == suspects


@pytest.mark.parametrize(
    ("answers", "me", "rank", "reason"),
    [
        pytest.param(
            [EXCHANGE, MUTE],
            0,
            1,
            f"rank 1 does not answer: rank 0 saw {SEEN}, in the exchange of step 812",
            id="no answer",
        ),
        pytest.param(
            [NEXT, FORWARD],
            0,
            1,
            f"rank 1 is stuck in the forward of step 812: rank 0 saw {SEEN}, in the exchange of step 813",
            id="stuck",
        ),
        pytest.param(
            [NEXT, FORWARD], 1, 1, f"rank 1 is stuck in the forward of step 812: rank 1 saw {SEEN}", id="stuck myself"
        ),
        pytest.param(
            [COLLECT, EXCHANGE],
            1,
            0,
            f"rank 0 is stuck in the collect of step 811: rank 1 saw {SEEN}, in the exchange of step 812",
            id="the tail belongs to the step before",
        ),
        pytest.param(
            [FORWARD, FORWARD],
            0,
            None,
            f"no rank stands out (all are in the forward of step 812): rank 0 saw {SEEN}",
            id="a tie",
        ),
        pytest.param(
            [EXCHANGE, EXCHANGE, GONE],
            1,
            None,
            f"no rank stands out (rank 2 cannot be asked, the others are in the exchange of step 812): "
            f"rank 1 saw {SEEN}",
            id="a tie, and one is gone",
        ),
        pytest.param(
            [EXCHANGE, MUTE, MUTE],
            0,
            None,
            f"no rank stands out (no other rank answers): rank 0 saw {SEEN}",
            id="cut off",
        ),
        pytest.param([FORWARD], 0, 0, f"rank 0 is stuck in the forward of step 812: {SEEN}", id="alone"),
    ],
)
def test_the_reason_is_one_sentence_about_the_culprit(
    answers: list[Answer], me: int, rank: int | None, reason: str
) -> None:
    verdict = judge(answers, me, ["host"] * len(answers), SEEN)
    assert (verdict.rank, verdict.reason) == (rank, reason)


def test_nodes_are_named_where_there_are_several() -> None:
    verdict = judge([EXCHANGE, MUTE], 0, ["job-launcher", "job-worker-0"], SEEN)
    assert verdict.reason.startswith("rank 1 (job-worker-0) does not answer: rank 0 saw")


def test_suspects_that_share_one_node_of_several_point_to_it() -> None:
    nodes = ["a", "a", "b", "b"]
    assert judge([EXCHANGE, EXCHANGE, MUTE, MUTE], 0, nodes, SEEN).rank == 2
    assert judge([EXCHANGE, MUTE, MUTE, EXCHANGE], 0, nodes, SEEN).rank is None
    assert judge([EXCHANGE, EXCHANGE, MUTE, MUTE], 0, ["a"] * 4, SEEN).rank is None


def test_a_large_group_makes_no_endless_sentence() -> None:
    verdict = judge([EXCHANGE] * 36 + [MUTE] * 36, 0, ["host"] * 72, SEEN)
    assert verdict.reason.startswith("ranks 36, 37, 38, 39, 40, 41, 42, 43 and 28 more do not answer: ")


STANDINGS = st.builds(Standing, st.integers(1, 3), st.sampled_from(Phase))


@given(st.lists(st.one_of(STANDINGS, st.sampled_from(Silence)), min_size=2, max_size=6), st.data())
def test_all_ranks_that_can_speak_blame_alike(answers: list[Answer], data: st.DataObject) -> None:
    """What the others answer is the same for all of them, however they stand; and nobody is blamed for having ended."""
    speakers = [rank for rank, answer in enumerate(answers) if isinstance(answer, Standing)]
    if not speakers:
        return
    nodes = data.draw(st.lists(st.sampled_from("abc"), min_size=len(answers), max_size=len(answers)))
    verdicts = [judge(answers, rank, nodes, SEEN) for rank in speakers]
    assert len({verdict.rank for verdict in verdicts}) == 1
    assert len({verdict.reason.split(": ")[0] for verdict in verdicts}) == 1
    assert all(answers[suspect] is not GONE for suspect in find_suspects(answers))
