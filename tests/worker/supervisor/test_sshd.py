"""A real sshd and a real ssh client on the loopback, as the user who runs the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_worker.errors import ConfigError
from lockstep_worker.supervisor.sshd import build_settings, run_sshd

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs OpenSSH's client and server")
PROGRAM = (
    "import sys; from pathlib import Path; from lockstep_worker.supervisor.sshd import run_sshd; "
    "run_sshd(port=int(sys.argv[1]), ssh_dir=Path(sys.argv[2]), address='127.0.0.1')"
)


def make_key(directory: Path) -> Path:
    directory.mkdir()
    key = directory / "id_rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def ssh(port: int, key: Path, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    words = ["ssh", "-F", "none", "-p", str(port), "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    user = pwd.getpwuid(os.geteuid()).pw_name
    return subprocess.run([*words, *options, f"{user}@127.0.0.1", *command], capture_output=True, text=True, timeout=60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    key = make_key(tmp_path / "ssh")
    shutil.copy(key.with_suffix(".pub"), key.parent / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(port), str(key.parent)], env=environ)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield port, key
    process.terminate()
    process.wait(timeout=30)


def test_the_groups_key_gets_in(server: tuple[int, Path]) -> None:
    result = ssh(*server, "echo", "hello")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr


def test_another_key_does_not_get_in(server: tuple[int, Path], tmp_path: Path) -> None:
    result = ssh(server[0], make_key(tmp_path / "other"), "echo", "hello")
    assert result.returncode == 255
    assert "Permission denied (publickey)" in result.stderr


def test_nothing_is_forwarded(server: tuple[int, Path]) -> None:
    options = ("-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1")
    assert ssh(*server, "true", options=options).returncode == 255


def test_the_host_key_is_private(server: tuple[int, Path], tmp_path: Path) -> None:
    (host_key,) = tmp_path.glob("lockstep-sshd-*/host_key")
    assert host_key.stat().st_mode & 0o077 == 0
    assert host_key.parent.stat().st_mode & 0o077 == 0


def test_a_missing_key_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="authorized_keys is missing"):
        run_sshd(ssh_dir=tmp_path)


def test_a_missing_server_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="OpenSSH's server is not installed"):
        run_sshd(ssh_dir=tmp_path)


@pytest.mark.parametrize("is_root", [False, True])
def test_passwords_are_never_asked_for(is_root: bool, tmp_path: Path) -> None:
    settings = build_settings(address=None, port=2222, host_key=tmp_path / "k", keys=tmp_path / "a", is_root=is_root)
    assert "PasswordAuthentication no\n" in settings
    assert f"PermitRootLogin {'prohibit-password' if is_root else 'no'}\n" in settings
