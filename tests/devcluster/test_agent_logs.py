from pathlib import Path

import pytest

from devcluster.agent.machine.logs import tail_offset


@pytest.mark.parametrize(
    ("text", "lines", "wanted"),
    [("a\nb\nc\n", 2, "b\nc\n"), ("a\nb\nc", 2, "b\nc"), ("a\n", 5, "a\n"), ("a\n", 0, ""), ("", 3, "")],
)
def test_the_tail_of_a_log_is_whole_lines(tmp_path: Path, text: str, lines: int, wanted: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert text[tail_offset(path, lines) :] == wanted
