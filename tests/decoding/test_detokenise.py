"""Text as it comes is the text of the whole, whatever the tokens are: pieces are compared with one decoding of all."""

import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import byte_fallback_tokenizer, byte_tokenizer

from reticent.decoding.detokenise import TextDecoder, TextStream
from reticent.models.base import PACKAGED_MODEL, resolve_base_model

BYTES = byte_tokenizer()
FALLBACK = byte_fallback_tokenizer()
FIRST_FALLBACK_BYTE = 3


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def stream(tokenizer, tokens):
    decode = TextDecoder(tokenizer)
    out = TextStream(decode, decode.stray_byte)
    return [*map(out.push, tokens), out.finish()]


def assert_joins_to_the_whole(tokenizer, tokens):
    pieces = stream(tokenizer, tokens)
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    assert "".join(pieces) == whole


def fallback_bytes(data: bytes) -> list[int]:
    return [FIRST_FALLBACK_BYTE + byte for byte in data]


# Random bytes seldom make a character, so whole ones are drawn as well.
characters = st.sampled_from("😀é€\n漢ab ")
byte_level_tokens = st.lists(
    st.one_of(
        st.integers(0, len(BYTES) - 1).map(lambda token: [token]), characters.map(lambda c: BYTES(c)["input_ids"])
    )
).map(lambda groups: [token for group in groups for token in group])
fallback_tokens = st.lists(
    st.one_of(
        st.integers(0, len(FALLBACK) - 1).map(lambda token: [token]),
        characters.map(lambda c: fallback_bytes(c.encode())),
    )
).map(lambda groups: [token for group in groups for token in group])


@given(byte_level_tokens)
def test_any_byte_level_tokens_join_to_the_text_of_all_at_once(tokens):
    assert_joins_to_the_whole(BYTES, tokens)


@given(fallback_tokens)
@example(fallback_bytes("😀".encode() + "😀".encode()[:2]))
@example([*fallback_bytes(b"\n"), *fallback_bytes(b"\x80")])
@example([*fallback_bytes("😀".encode()), FALLBACK.eos_token_id, *fallback_bytes(b"\xf0")])
def test_any_byte_fallback_tokens_join_to_the_text_of_all_at_once(tokens):
    assert_joins_to_the_whole(FALLBACK, tokens)


@given(st.lists(st.one_of(st.integers(0, 49151), st.sampled_from([1000, 127, 222, 240, 249])), max_size=12))
def test_any_tokens_of_the_packaged_model_join_to_the_text_of_all_at_once(tokens):
    assert_joins_to_the_whole(packaged_tokenizer(), tokens)


@functools.cache
def packaged_tokenizer():
    return resolve_base_model(PACKAGED_MODEL).load_tokenizer()


def test_an_emoji_cut_behind_another_is_shown_as_the_whole_is_decoded():
    cut = fallback_bytes("😀".encode() + "😁".encode()[:2])
    assert stream(FALLBACK, cut) == [""] * len(cut) + ["\N{REPLACEMENT CHARACTER}" * len(cut)]
    byte_level = BYTES("😀😁")["input_ids"][:6]
    assert stream(BYTES, byte_level) == ["", "", "", "😀", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_run_of_byte_tokens_is_shown_once_a_token_of_another_kind_ends_it():
    [word] = FALLBACK.convert_tokens_to_ids(["▁the"])
    assert stream(FALLBACK, [*fallback_bytes("é\n".encode()), word, word]) == ["", "", "", "é\n the", " the", ""]


def test_a_function_alone_is_enough_for_runs_that_begin_with_a_part_of_a_character():
    out = TextStream(lambda ids: FALLBACK.decode(ids, skip_special_tokens=True))
    cut = fallback_bytes("😀".encode() + "😁".encode()[:2])
    assert "".join([*map(out.push, cut), out.finish()]) == FALLBACK.decode(cut)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_pieces_join_to_the_text_and_none_splits_a_character(text):
    pieces = stream(BYTES, BYTES(text)["input_ids"])
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_appears_with_its_last_byte(tokenizer):
    tokens = tokenizer("é€")["input_ids"]
    assert len(tokens) == 5
    assert stream(tokenizer, tokens) == ["", "é", "", "", "€", ""]


def test_an_unfinished_character_is_marked_at_the_end(tokenizer):
    assert stream(tokenizer, tokenizer("a€")["input_ids"][:-1]) == ["a", "", "", "\ufffd"]


def test_special_tokens_add_no_text(tokenizer):
    assert stream(tokenizer, [*tokenizer("ab")["input_ids"], tokenizer.eos_token_id]) == ["a", "b", "", ""]
