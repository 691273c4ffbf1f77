"""Builds of a tiny Go module by the real compiler: at once, after an interruption, and with an error in it."""

import os
import threading
from pathlib import Path

import pytest

from devcluster.errors import ToolError
from devcluster.programs.build import GoModule, built, find_control_plane

GOOD = 'package main\n\nfunc main() { println("hello") }\n'


def module(folder: Path, source: str = GOOD) -> GoModule:
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/tiny\n\ngo 1.26\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text(source)
    return GoModule(folder, {"hello": "example.test/tiny"})


def test_two_builds_at_once_compile_once_and_agree(tmp_path: Path) -> None:
    tiny, lines, folders = module(tmp_path / "tiny"), list[str](), list[Path]()

    def build() -> None:
        folders.append(built(tiny, lines.append, tmp_path / "cache"))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(line.startswith("building") for line in lines) == 1
    assert folders[0] == folders[1]
    assert [path.name for path in folders[0].iterdir()] == ["hello"]


def test_what_an_interrupted_build_left_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    tiny, cache = module(tmp_path / "tiny"), tmp_path / "cache"
    folder = built(tiny, print, cache)
    interrupted = folder.with_name(f"{folder.name}.tmp-x1")
    folder.rename(interrupted)
    (interrupted / "hello").unlink()

    assert (built(tiny, print, cache) / "hello").is_file()
    assert not interrupted.exists()


def test_another_pin_is_another_folder(tmp_path: Path) -> None:
    tiny, cache = module(tmp_path / "tiny"), tmp_path / "cache"
    before = built(tiny, print, cache)
    (tiny.folder / "go.sum").write_text("example.test/other v1.0.0 h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")

    assert built(tiny, print, cache) != before


def test_a_failed_build_shows_the_compilers_words_and_leaves_no_folder(tmp_path: Path) -> None:
    tiny, cache = module(tmp_path / "tiny", "package main\n\nfunc main() { undefinedName() }\n"), tmp_path / "cache"

    with pytest.raises(ToolError, match="undefined: undefinedName"):
        built(tiny, print, cache)

    assert not [path for path in cache.iterdir() if path.name.startswith("bin-tiny") and ".tmp-" not in path.name]


def test_programs_at_hand_are_used_when_their_version_fits_and_named_when_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    (tmp_path / "kube-apiserver").symlink_to(find_control_plane(print)["kube-apiserver"])
    (tmp_path / "etcd").write_text("#!/bin/sh\necho etcd Version: 3.4.23\n")
    (tmp_path / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))

    found = find_control_plane(lines.append)

    assert found["kube-apiserver"].parent == tmp_path
    assert found["etcd"].parent != tmp_path
    assert os.access(found["etcd"], os.X_OK)
    assert any(f"not using {tmp_path / 'etcd'}" in line and "3.4.23" in line for line in lines)
