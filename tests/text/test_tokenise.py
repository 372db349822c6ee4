"""Texts as tokens: what is added, what is cut, and what is refused."""

import logging

import numpy as np
import pytest
from tiny_models import BOS, EOS, byte_tokenizer
from tokenizers import processors

from reticent.errors import CorpusError, InvalidValueError
from reticent.models.base import PACKAGED_MODEL, resolve_base_model
from reticent.text import tokenise as texts_module
from reticent.text.tokenise import encode_prompt, encode_texts


class StartsTexts:
    """A tokenizer that begins each text with BOS and, if asked, ends it with EOS, as many families' do."""

    def __new__(cls, ends: bool = False):
        tokenizer = byte_tokenizer()
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>" if ends else "<bos> $A", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
        )
        return tokenizer


def without(token: str):
    tokenizer = byte_tokenizer()
    setattr(tokenizer, token, None)
    return tokenizer


def sequences(encoded) -> list[list[int]]:
    return [encoded.tokens[a:b].tolist() for a, b in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)]


def plain(text: str) -> list[int]:
    return byte_tokenizer()(text)["input_ids"]


def test_texts_end_with_the_end_token_and_stand_end_to_end() -> None:
    encoded = encode_texts(byte_tokenizer(), ["abc", "z", "é"], 16)
    assert len(encoded) == 3
    assert sequences(encoded) == [[*plain("abc"), EOS], [*plain("z"), EOS], [*plain("é"), EOS]]
    np.testing.assert_array_equal(encoded.lengths, [4, 2, 3])
    assert encoded.num_truncated == 0
    assert encoded.tokens.dtype == encoded.offsets.dtype == np.int64


def test_special_tokens_of_the_tokenizer_are_kept_and_none_is_doubled() -> None:
    assert sequences(encode_texts(StartsTexts(), ["ab"], 16)) == [[BOS, *plain("ab"), EOS]]
    assert sequences(encode_texts(StartsTexts(ends=True), ["ab"], 16)) == [[BOS, *plain("ab"), EOS]]


def test_a_tokenizer_without_an_end_token_adds_none() -> None:
    assert sequences(encode_texts(without("eos_token"), ["ab", "cde"], 16)) == [plain("ab"), plain("cde")]


def test_longer_texts_are_cut_without_an_end_token_and_counted() -> None:
    # With its end token, "abc" fits in 4 tokens exactly and "abcd" does not.
    encoded = encode_texts(byte_tokenizer(), ["abc", "abcd", "abcdefgh", "a"], 4)
    assert sequences(encoded) == [[*plain("abc"), EOS], plain("abcd"), plain("abcd"), [*plain("a"), EOS]]
    assert encoded.num_truncated == 2


def test_batches_of_texts_join_seamlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [chr(97 + i % 26) * (1 + i % 5) for i in range(30)]
    whole = encode_texts(byte_tokenizer(), many, 4)
    monkeypatch.setattr(texts_module, "_ENCODE_AT_ONCE", 7)
    parts = encode_texts(byte_tokenizer(), many, 4)
    assert sequences(parts) == sequences(whole)
    assert parts.num_truncated == whole.num_truncated == 12


def test_a_text_of_fewer_than_two_tokens_is_refused_by_number() -> None:
    with pytest.raises(CorpusError, match=r"^record 3: .* fewer than two tokens"):
        encode_texts(without("eos_token"), ["ab", "cd", "e", "f"], 16)


def test_a_text_of_fewer_than_two_tokens_is_refused_by_its_source() -> None:
    with pytest.raises(CorpusError, match=r"^notes\.jsonl:7: .* fewer than two tokens"):
        encode_texts(without("eos_token"), ["ab", "e"], 16, sources=["notes.jsonl:2", "notes.jsonl:7"])


def test_a_text_beyond_the_tokenizers_own_limit_says_nothing_of_its_own(caplog, capfd) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = 4
    logger = logging.getLogger("transformers")
    propagate, logger.propagate = logger.propagate, True
    try:
        encode_texts(tokenizer, ["abcdefgh"], 6)
        encode_prompt(tokenizer, "abcdefgh")
    finally:
        logger.propagate = propagate
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_prompt_is_the_beginning_of_a_text() -> None:
    assert encode_prompt(byte_tokenizer(), "ab") == plain("ab")
    assert encode_prompt(StartsTexts(), "ab") == [BOS, *plain("ab")]
    assert encode_prompt(StartsTexts(ends=True), "ab") == [BOS, *plain("ab")]


@pytest.mark.parametrize("tokenizer", [StartsTexts(), StartsTexts(ends=True)])
def test_an_empty_prompt_starts_as_texts_do(tokenizer) -> None:
    assert encode_prompt(tokenizer, "") == [BOS]


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), without("bos_token")])
def test_an_empty_prompt_is_refused_where_texts_begin_with_no_token_of_their_own(tokenizer) -> None:
    with pytest.raises(InvalidValueError, match=r"no token to start from.* give the first words"):
        encode_prompt(tokenizer, "")
    assert encode_prompt(tokenizer, "a") == plain("a")


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), StartsTexts(), StartsTexts(ends=True), without("bos_token")])
@pytest.mark.parametrize("text", ["ab", "<bos>Hi", "<bos><bos>Hi", "so<eos>", "<bos>so<eos>", "a<eos>b", "a<bos>b"])
def test_a_prompt_is_what_training_reads_of_the_same_words(tokenizer, text) -> None:
    [trained] = sequences(encode_texts(tokenizer, [text], 64))
    prompt = encode_prompt(tokenizer, text)
    # A text is closed in training, unless it closes itself.
    assert prompt in (trained, trained[:-1])
    assert (prompt == trained) == text.endswith("<eos>")


def test_no_beginning_is_doubled_and_a_prompts_own_end_stays() -> None:
    hi = plain("Hi")
    for tokenizer in (StartsTexts(), StartsTexts(ends=True)):
        assert encode_prompt(tokenizer, "<bos>Hi") == [BOS, *hi]
        assert encode_prompt(tokenizer, "Hi<eos>") == [BOS, *hi, EOS]
    assert encode_prompt(byte_tokenizer(), "Hi<eos>") == [*hi, EOS]


def test_a_text_that_closes_itself_is_closed_once() -> None:
    for tokenizer in (byte_tokenizer(), StartsTexts(), StartsTexts(ends=True)):
        [tokens] = sequences(encode_texts(tokenizer, ["ab<eos>"], 16))
        assert tokens.count(EOS) == 1


def test_prompts_of_the_packaged_model() -> None:
    tokenizer = resolve_base_model(PACKAGED_MODEL).load_tokenizer()
    ends_a_turn = encode_prompt(tokenizer, "Thank you<|im_end|>")
    assert ends_a_turn == [*encode_prompt(tokenizer, "Thank you"), tokenizer.eos_token_id]
    with pytest.raises(InvalidValueError, match="no token to start from"):
        encode_prompt(tokenizer, "")


def test_a_tokenizer_with_one_token_for_both_ends_keeps_its_beginning() -> None:
    # As OPT's: every text begins with </s>, which is also the end of text.
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<eos>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", EOS)]
    )
    assert encode_prompt(tokenizer, "") == [EOS]
    assert encode_prompt(tokenizer, "ab") == [EOS, *plain("ab")]
    assert sequences(encode_texts(tokenizer, ["ab"], 16)) == [[EOS, *plain("ab"), EOS]]
