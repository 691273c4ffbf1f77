"""How peers are asked: real rank servers and sockets that misbehave, in bounded time."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

from lockstep_worker.health.hang import HangDetector
from lockstep_worker.health.peers import Peer, Peers, _find_address
from lockstep_worker.health.rank_server import RankServer
from lockstep_worker.health.readiness import Readiness
from lockstep_worker.health.suspects import Silence
from lockstep_worker.parallel.comm import SingleComm
from lockstep_worker.phase import Phase, Standing

MINE, THEIRS = Standing(813, Phase.EXCHANGE), Standing(812, Phase.FORWARD)
LOCAL = "127.0.0.1"
GOOD = json.dumps({"rank": 1, "step": 812, "phase": "forward"})


@contextlib.contextmanager
def rank_server(rank: int) -> Iterator[Peer]:
    detector = HangDetector(0, on_hang=lambda _: None)
    server = RankServer(CollectorRegistry(), Readiness(), detector, lambda: THEIRS, rank=rank, host=LOCAL, port=0)
    server.start()
    yield Peer("host", server.host, server.port)
    server.stop()


@contextlib.contextmanager
def listener(behave: Callable[[socket.socket], None] | None = None) -> Iterator[Peer]:
    """A socket that the kernel accepts connections for; with `behave` the process does, too."""

    def serve() -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            connection.recv(1000)
            assert behave is not None
            behave(connection)

    with socket.create_server((LOCAL, 0)) as listening:
        if behave is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield Peer("host", LOCAL, listening.getsockname()[1])


def ask(*others: Peer, bound_s: float = 10.0) -> list[Standing | Silence]:
    return list(Peers(0, [Peer("host", LOCAL, 1), *others]).ask(MINE, bound_s))[1:]


def test_a_rank_that_answers_tells_its_standing() -> None:
    with rank_server(1) as one, rank_server(2) as two:
        assert Peers(1, [one, one, two]).ask(MINE) == [Silence.UNREACHABLE, MINE, THEIRS]
        assert ask(one, two) == [THEIRS, THEIRS]


def test_a_process_that_stands_still_gives_no_answer_and_costs_the_bound() -> None:
    start = time.monotonic()
    with listener() as mute, rank_server(2) as two:
        assert ask(mute, two, bound_s=0.5) == [Silence.NO_ANSWER, THEIRS]
    assert time.monotonic() - start < 5


def test_a_process_that_is_gone_is_told_from_one_that_stands_still() -> None:
    with listener() as peer:
        pass
    assert ask(peer, Peer("other", "", 9400)) == [Silence.UNREACHABLE] * 2


def say(text: str) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + text.encode())


def drip(connection: socket.socket) -> None:
    for _ in range(1000):
        connection.sendall(b"H")
        time.sleep(0.05)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    ("behave", "answer"),
    [
        pytest.param(say(GOOD), THEIRS, id="good"),
        pytest.param(say(GOOD + " " * 10_000), Silence.UNREACHABLE, id="too long"),
        pytest.param(say(GOOD.replace("1", "7")), Silence.UNREACHABLE, id="another rank"),
        pytest.param(say(GOOD.replace("forward", "<b>dreams</b>")), Silence.UNREACHABLE, id="an unknown word"),
        pytest.param(say(GOOD.replace("812", '"812"')), Silence.UNREACHABLE, id="a wrong type"),
        pytest.param(say("{"), Silence.UNREACHABLE, id="no JSON"),
        pytest.param(lambda _: None, Silence.UNREACHABLE, id="nothing"),
        pytest.param(reset, Silence.UNREACHABLE, id="cut"),
        pytest.param(drip, Silence.NO_ANSWER, id="endless"),
    ],
)
def test_an_answer_is_not_trusted(behave: Callable[[socket.socket], None], answer: object) -> None:
    with listener(behave) as peer:
        assert ask(peer, bound_s=2.0) == [answer]


def test_seventy_two_ranks_are_asked_in_time_by_many_at_once() -> None:
    with rank_server(1) as peer, listener() as mute:
        peers = Peers(0, [Peer("host", LOCAL, 1), *[peer] * 70, mute])
        answers: list[list[object]] = []
        threads = [threading.Thread(target=lambda: answers.append(list(peers.ask(MINE)))) for _ in range(4)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert time.monotonic() - start < 10
    assert len(answers) == len(threads)
    assert all(answer[1] == THEIRS and answer[71] is Silence.NO_ANSWER for answer in answers)
    # One server stands for all, so only its own answer counts; the others prove that nobody was turned away.
    assert all(answer[2:71] == [Silence.UNREACHABLE] * 69 for answer in answers)


def test_a_judgement_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no sockets left")

    monkeypatch.setattr(Peers, "ask", fail)
    verdict = Peers(0, [Peer("host", LOCAL, 1)] * 2).judge(MINE, "no progress")
    assert (verdict.rank, verdict.reason) == (None, "rank 0 saw no progress, in the exchange of step 813")


def test_a_rank_alone_asks_nobody_and_blames_itself() -> None:
    verdict = Peers.share(SingleComm(), "0.0.0.0", 9400).judge(THEIRS, "no progress for 4.2 s (timeout 4 s)")
    assert verdict.rank == 0
    assert verdict.reason == "rank 0 is stuck in the forward of step 812: no progress for 4.2 s (timeout 4 s)"


@pytest.mark.parametrize(
    ("bound", "is_alone", "address"),
    [
        pytest.param("127.0.0.1", True, "127.0.0.1", id="loopback on one host"),
        pytest.param("127.0.0.1", False, "", id="loopback is out of other hosts' reach"),
        pytest.param("0.0.0.0", True, "127.0.0.1", id="all addresses on one host"),
        pytest.param("10.77.0.2", False, "10.77.0.2", id="one address"),
    ],
)
def test_the_address_for_peers_is_one_that_they_can_reach(bound: str, is_alone: bool, address: str) -> None:
    assert _find_address(bound, is_alone=is_alone) == address
