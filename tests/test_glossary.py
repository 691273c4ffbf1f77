"""The glossary of docs/architecture.md against the code: each word has its home, and some are kept to their rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = sorted(path for tree in ("operator", "worker") for path in (ROOT / tree).rglob("*.py"))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first row is the heading."""
    body = PAGE.split(heading, 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]


WORDS = rows("| word | meaning | look in |")
KEPT = rows("| word | only in names of |")
WORKS = rows("| work | room | seam |")


def named(tree: ast.AST) -> Iterator[str]:
    """Every name that a module gives: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words_of(name: str) -> set[str]:
    """`choose_places` and `ChoosePlaces` are choose and place."""
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return words | {word.removesuffix("s") for word in words}


def uses(word: str) -> Iterator[tuple[str, str]]:
    """Where a word stands in a name: the module's path, and the name."""
    for path in SOURCES:
        where = str(path.relative_to(ROOT))
        for name in {*named(ast.parse(path.read_text())), *path.relative_to(ROOT).with_suffix("").parts[2:]}:
            if word in words_of(name):
                yield where, name


def test_each_word_has_one_meaning() -> None:
    words = [word for word, *_ in WORDS]
    assert len(set(words)) == len(words) > 20
    assert all(meaning for _, meaning, _ in WORDS)


@pytest.mark.parametrize(("word", "home"), [(word, home.strip("`")) for word, _, home in WORDS])
def test_a_word_is_at_home_where_the_table_says(word: str, home: str) -> None:
    """It stands in a name there, or in the first words of the module, of a class or of a function."""
    tree = ast.parse((ROOT / home).read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    openings = " ".join((ast.get_docstring(node) or "").split("\n\n")[0] for node in nodes).lower()
    stem = word.rsplit(maxsplit=1)[-1][:5]  # `admission` is the act of admitting, `routing` that of routing
    names = " ".join([*named(tree), Path(home).stem]).lower()
    assert re.search(rf"\b{stem}", openings) or stem in names, f"{home} does not speak of {word}"


@pytest.mark.parametrize(
    ("words", "rooms"),
    [(words.split(", "), re.findall(r"`([^`]+)`", rooms)) for words, rooms in KEPT],
    ids=[words for words, _ in KEPT],
)
def test_a_word_that_is_easily_mistaken_stays_in_its_rooms(words: list[str], rooms: list[str]) -> None:
    assert all((ROOT / room).exists() for room in rooms)
    found = {one for word in words for one in uses(word)}
    assert {(where, name) for where, name in found if not any(is_in(where, room) for room in rooms)} == set()
    for room in rooms:
        assert any(is_in(where, room) for where, _ in found), f"nothing in {room} is called {words[0]}: drop the room"


def is_in(where: str, room: str) -> bool:
    return where == room or where.startswith(f"{room}/")


TREES = (ROOT, ROOT / "operator" / "lockstep_operator", ROOT / "worker" / "lockstep_worker")


def test_the_ten_works_to_come_have_their_rooms_and_their_seams_are_there() -> None:
    assert len(WORKS) >= 10
    for work, rooms, seam in WORKS:
        for room in re.findall(r"`([^`]+)`", rooms):
            if "/" in room:
                assert any((tree / room).parent.is_dir() for tree in TREES), f"{work}: {room} has no room to stand in"
        for name in re.findall(r"`([^`]+)`", seam):
            assert is_there(name), f"{work}: there is no {name}"


def is_there(name: str) -> bool:
    """Whether a path, a `Class.member`, a `module.Class` or a function or field of the API exists."""
    owner, _, member = name.rpartition(".")
    if "/" in name:
        return any((tree / part).exists() for tree in TREES for part in (name, f"{name}.py", f"{owner}.py"))
    if owner and owner[0].isupper():
        return any(defines(path, owner, member) for path in SOURCES)
    word = re.escape(member.removesuffix("[]"))
    return any(re.search(rf"\b{word}\b", path.read_text()) for path in SOURCES)


def defines(path: Path, owner: str, member: str) -> bool:
    """Whether a module has a class with a method, field or property of that name."""
    text = path.read_text()
    if f"class {owner}" not in text:
        return False
    body = text.split(f"class {owner}", 1)[1].split("\nclass ", 1)[0]
    return re.search(rf"(def {member}\b|^    {member}\b|self\.{member}\b)", body, re.MULTILINE) is not None


def test_a_stray_word_would_be_found() -> None:
    tree = ast.parse("class EngineLink:\n    def launch_all(self, dist): self.places = 1\n")
    assert set(named(tree)) == {"EngineLink", "launch_all", "self", "dist", "places"}
    assert words_of("EngineLink") == {"engine", "link"}
    assert {"launch", "all"} <= words_of("launch_all")
    assert "place" in words_of("places")
