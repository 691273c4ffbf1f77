import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_worker.frontend.text.stops import StopMatcher

ALPHABET = "ab"


def cut_at_first(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule, spelled out: look at ever longer beginnings until one ends with a stop string; the longest counts."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    sent = []
    for piece in pieces:
        text, is_met = matcher.push(piece)
        sent.append(text)
        if is_met:
            return sent, True
    return [*sent, matcher.flush()], False


@given(
    st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text(ALPHABET + "c", max_size=4), max_size=12),
)
def test_any_cut_into_pieces_gives_the_text_before_the_first_stop(stops: list[str], pieces: list[str]) -> None:
    sent, is_met = run(stops, pieces)
    assert ("".join(sent), is_met) == cut_at_first("".join(pieces), stops)


@given(
    st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text(ALPHABET + "c", max_size=4), max_size=12),
)
def test_what_is_held_back_is_always_a_beginning_of_a_stop(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = sent = ""
    for piece in pieces:
        text, is_met = matcher.push(piece)
        if is_met:
            return
        seen, sent = seen + piece, sent + text
        held = seen[len(sent) :]
        beginnings = [seen[at:] for at in range(len(seen)) if any(stop.startswith(seen[at:]) for stop in stops)]
        assert held == max(beginnings, key=len, default="")


@pytest.mark.parametrize(
    ("stops", "pieces", "sent"),
    [
        pytest.param(["END"], ["x E", "N", "D y"], ["x ", "", ""], id="across pieces"),
        pytest.param(["END"], ["x E", "NX", "."], ["x ", "ENX", "."], id="released when it cannot match"),
        pytest.param(["aab"], ["aa", "a", "b"], ["", "a", ""], id="overlap with itself"),
        pytest.param(["xyz", "y"], ["axy"], ["ax"], id="the one completed first"),
        pytest.param(["b", "ab"], ["cab"], ["c"], id="the longest completed there"),
        pytest.param(["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], id="newlines"),
    ],
)
def test_pieces_go_out_as_soon_as_they_may(stops: list[str], pieces: list[str], sent: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece)[0] for piece in pieces] == sent


def test_what_was_held_comes_out_at_the_end() -> None:
    assert run(["STOP"], ["a ST", "O"]) == (["a ", "", "STO"], False)
