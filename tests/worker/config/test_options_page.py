"""`docs/options.md` is what the declarations say."""

from __future__ import annotations

from pathlib import Path

from lockstep_worker.contract.option import options_of
from lockstep_worker.contract.page import document
from lockstep_worker.contract.serve import ServeOptions

PAGE = Path(__file__).resolve().parents[3] / "docs" / "options.md"


def test_the_page_is_generated() -> None:
    assert PAGE.read_text() == document()


def test_every_option_has_one_row_with_its_flag_and_its_variable() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `--")]
    for row, option in zip(rows, options_of(ServeOptions).values(), strict=True):
        assert row.startswith(f"| `{option.flag}")
        assert f"`{option.variable}`" in row
        assert row.count("|") == 6  # nothing in a cell ends it


def test_an_option_without_a_value_says_in_words_what_holds() -> None:
    for option in options_of(ServeOptions).values():
        assert ("unset" in option.metadata) == (option.default in (None, "")), option.name
