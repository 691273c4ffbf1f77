from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lockstep_worker.frontend.text.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    build_detokenizers,
)
from support.worlds.frontend import END_ID, load_backend

BYTE_LEVEL = load_backend()
TEXTS = ("Q=0731 k=4217", "héllo wörld", "你好，世界", "👨‍👩‍👧 😀", "กำ ไทย", "a\u0301\u0302", "\ufffd real")


def byte_fallback_tokenizer() -> Tokenizer:
    vocab = {"<unk>": 0, "</s>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for piece in ("▁", "a", "b", "é", "▁a", "ab", "▁ab"):
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "un": 1, "##want": 2, "##ed": 3, "run": 4, "!": 5}))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


BYTE_FALLBACK = byte_fallback_tokenizer()
WORD_PIECE = word_piece_tokenizer()


def spell(detokenizer: Detokenizer, ids: Sequence[int]) -> list[str]:
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text


@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=60))
def test_pieces_of_any_byte_level_ids_are_the_text_of_all(ids: list[int]) -> None:
    make = build_detokenizers(BYTE_LEVEL)
    assert isinstance(make([5]), ByteDetokenizer)
    assert "".join(spell(make(BYTE_LEVEL.encode("COPY").ids), ids)) == decode(BYTE_LEVEL, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_ends_inside_a_character(tokenizer: Tokenizer, text: str) -> None:
    prompt = tokenizer.encode("a").ids
    ids = tokenizer.encode("a" + text).ids[len(prompt) :]
    pieces = spell(build_detokenizers(tokenizer)(prompt), ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert pieces[-1] == "" or text.endswith("\ufffd")


@given(st.text(alphabet="ab é你😀", max_size=30), st.text(alphabet="ab é你😀", min_size=1, max_size=30))
def test_output_continues_the_prompt_where_text_depends_on_neighbours(prompt: str, output: str) -> None:
    ids = BYTE_FALLBACK.encode("a" + prompt + output).ids
    cut = len(BYTE_FALLBACK.encode("a" + prompt).ids)
    if decode(BYTE_FALLBACK, ids[:cut]) != "a" + prompt:  # a merge crosses the border: there is no such cut
        return
    make = build_detokenizers(BYTE_FALLBACK)
    assert isinstance(make([5]), WindowDetokenizer)
    assert "".join(spell(make(ids[:cut]), ids[cut:])) == decode(BYTE_FALLBACK, ids)[len(prompt) + 1 :]


def test_words_are_spaced_as_the_decoder_spaces_them() -> None:
    assert spell(build_detokenizers(WORD_PIECE)([4]), [1, 2, 3, 5])[:-1] == [" un", "want", "ed", " !"]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character_never_leaks(tokenizer: Tokenizer, num_bytes: int) -> None:
    prefix = tokenizer.encode("abababab ab").ids
    whole = tokenizer.encode("abababab ab😀b").ids[len(prefix) :]
    prompt, rest = prefix + whole[:num_bytes], whole[num_bytes:]
    make = build_detokenizers(tokenizer)
    assert "".join(spell(make(prompt), rest)) == "😀b", "a character that the output completes belongs to it"
    assert "".join(spell(make(prompt), whole[-1:])) == "b", "bytes of the prompt alone are not output"
    assert "".join(spell(make(prompt), [])) == ""


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
def test_an_unfinished_character_is_flushed_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀").ids
    pieces = spell(build_detokenizers(tokenizer)(ids[:1]), ids[1:-1])
    assert "".join(pieces[:-1]) == ""
    assert set(pieces[-1]) == {"\ufffd"}


def test_special_tokens_and_ids_beyond_the_tokenizer_have_no_text() -> None:
    make = build_detokenizers(BYTE_LEVEL)
    assert spell(make([1, 5, END_ID, 447]), [0, 1, END_ID, 440, 447]) == [""] * 6


class Longest:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.length = 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.length = max(self.length, len(ids))
        return decode(self.tokenizer, ids)


@pytest.mark.parametrize("token", [2 + 0x80, 1, 0], ids=["invalid byte", "special token", "unknown"])
def test_endless_output_without_whole_characters_costs_the_same_for_each_token(token: int) -> None:
    longest = Longest(BYTE_FALLBACK)
    detokenizer = WindowDetokenizer(longest, BYTE_FALLBACK.encode("a").ids)
    for _ in range(500):
        detokenizer.push(token)
    assert longest.length < 64


def test_added_tokens_that_are_not_special_keep_their_text() -> None:
    tokenizer = Tokenizer.from_str(BYTE_LEVEL.to_str())
    tokenizer.add_tokens([AddedToken("<tool call>", special=False)])
    token = tokenizer.token_to_id("<tool call>")
    assert token is not None
    ids = [token, *tokenizer.encode("k=").ids, token]
    assert (
        "".join(spell(build_detokenizers(tokenizer)([5]), ids)) == decode(tokenizer, ids) == "<tool call>k=<tool call>"
    )


def test_characters_come_out_as_soon_as_they_are_whole() -> None:
    ids = BYTE_LEVEL.encode("é你").ids
    pieces = spell(build_detokenizers(BYTE_LEVEL)([5]), ids)
    assert pieces == ["", "é", "", "", "你", ""]
