import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import byte_tokenizer

from reticent.decoding.text import TextStream


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def stream(tokenizer, tokens):
    out = TextStream(lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    return [*map(out.push, tokens), out.finish()]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_pieces_join_to_the_text_and_none_splits_a_character(text):
    tokenizer = byte_tokenizer()
    pieces = stream(tokenizer, tokenizer(text)["input_ids"])
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
