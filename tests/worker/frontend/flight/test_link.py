import contextlib
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from lockstep_worker import contract
from lockstep_worker.executor.publish import Outlet, say_engine_down
from lockstep_worker.wire.messages import EngineDown, FinishCode, Outbound, Tokens
from support.worlds.engine import say_forever
from support.worlds.frontend import Frontend, encode, free_port, start_frontend, wait_until

Pair = tuple[str, str]


def new_pair() -> Pair:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


SERVER, RANK, STRANGER = new_pair(), new_pair(), new_pair()


@pytest.fixture(scope="module")
def remote() -> Iterator[tuple[Frontend, str]]:
    address = f"tcp://127.0.0.1:{free_port()}"
    settings = {"address": address, "public_key": SERVER[0], "secret_key": SERVER[1], "rank_keys": [RANK[0]]}
    with start_frontend(outbound_remote=settings) as frontend:
        yield frontend, address


@contextlib.contextmanager
def push(address: str, message: Outbound, own: Pair | None, server_key: str) -> Iterator[None]:
    """Send a message as a rank on another host does."""
    publisher: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
    if own is not None:
        publisher.curve_serverkey = server_key.encode()
        publisher.curve_publickey, publisher.curve_secretkey = own[0].encode(), own[1].encode()
    publisher.sndtimeo = 5000
    publisher.connect(address)
    try:
        publisher.send(msgspec.msgpack.encode(message))
        yield
    finally:
        publisher.close(linger=0)


def test_a_rank_with_its_key_publishes_over_tcp(remote: tuple[Frontend, str]) -> None:
    frontend, address = remote
    frontend.engine.script = say_forever(encode("a")[0])
    with frontend.client() as client:
        body = {"model": "recall", "prompt": "COPY", "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as stream:
            wait_until(lambda: len(frontend.engine.running) == 1, 10)
            handle = frontend.engine.running[0]
            tokens = Tokens.pack(1, 0, [handle], encode("z"), [FinishCode.LENGTH])
            with push(address, tokens, RANK, SERVER[0]):
                text = stream.read().decode()
    assert '"text":"z"' in text.replace("az", "z")
    assert '"finish_reason":"length"' in text


@pytest.mark.parametrize(
    ("own", "server_key"),
    [
        pytest.param(None, "", id="no key"),
        pytest.param(STRANGER, SERVER[0], id="an unknown key"),
        pytest.param(RANK, STRANGER[0], id="the wrong server key"),
    ],
)
def test_a_stranger_gets_nothing_in(remote: tuple[Frontend, str], own: Pair | None, server_key: str) -> None:
    frontend, address = remote
    # A connection that was refused may be gone before it takes a message.
    with contextlib.suppress(zmq.Again), push(address, EngineDown(1, "a lie", 1), own, server_key):
        time.sleep(0.5)
    assert frontend.process.poll() is None
    with frontend.client() as client:
        assert client.get("/ready").status_code == 200


def test_a_connection_that_speaks_no_zmq_harms_nobody(remote: tuple[Frontend, str]) -> None:
    frontend, address = remote
    host, port = address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    with frontend.client() as client:
        assert client.get("/ready").status_code == 200


def test_the_true_rank_is_heard(remote: tuple[Frontend, str]) -> None:
    frontend, address = remote
    say_engine_down(Outlet(address, SERVER[0], *RANK), 7, "the truth", 87)
    assert frontend.process.wait(20) == 87


def test_a_message_that_cannot_be_read_ends_the_frontend_loudly() -> None:
    with start_frontend() as frontend:
        frontend.engine.publish_bytes(b"\xc1")
        assert frontend.process.wait(20) == contract.EXIT_FRONTEND
