"""A text is encoded once and for all: what is trained is what is scored."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_models import BOS, EOS, VOCABULARY, build_tiny_model, byte_tokenizer
from tokenizers.processors import TemplateProcessing

from reticent.errors import InvalidValueError
from reticent.text.fields import join_fields
from reticent.text.template import TextTemplate, collate, encode, padding_id
from reticent.text.tokenise import encode_texts

TEXTS = ["one", "", "a longer text of bytes", "é"]


def beginning_tokenizer(single="<bos> $A"):
    """The byte tokenizer, adding special tokens of its own as LLaMA's (or, with an end, T5's) does."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    return tokenizer


def ids_of(tokenizer, text, /, **template):
    [encoded] = encode(tokenizer, TextTemplate(**template), [text])
    return encoded.token_ids.tolist()


def test_a_causal_text_is_its_tokens_and_one_end():
    tokenizer = byte_tokenizer()
    plain = [tokenizer.convert_tokens_to_ids(character) for character in "one"]
    assert ids_of(tokenizer, "one") == [*plain, EOS]
    assert ids_of(tokenizer, "one<eos>") == [*plain, EOS]
    assert ids_of(tokenizer, "one", add_eos=False) == plain
    assert ids_of(beginning_tokenizer("$A <eos>"), "one") == [*plain, EOS]
    assert ids_of(beginning_tokenizer("$A <eos>"), "one", add_eos=False) == plain


@pytest.mark.parametrize("text", ["one", "<bos>one", "<bos><bos>one"])
def test_mistake_bos_added_twice(text):
    tokenizer = beginning_tokenizer()
    ids = ids_of(tokenizer, text)
    assert ids[0] == BOS
    assert ids.count(BOS) == 1
    assert ids_of(tokenizer, "one", text="<bos>{text}") == ids
    assert ids_of(byte_tokenizer(), "one", text="<bos>{text}") == ids


def test_mistake_bos_in_the_middle():
    ids = ids_of(beginning_tokenizer(), "one", text="Text: {text}\nEnd")
    assert [position for position, token in enumerate(ids) if token == BOS] == [0]
    assert beginning_tokenizer().decode(ids[1:-1]) == "Text: one\nEnd"


@pytest.mark.parametrize("make", [byte_tokenizer, beginning_tokenizer])
def test_the_default_template_is_what_worlds_are_trained_on(make):
    texts = [text for text in TEXTS if text]
    trained = encode_texts(make(), texts, 9)
    scored = encode(make(), TextTemplate(max_tokens=9), texts)
    assert np.concatenate([text.token_ids for text in scored]).tolist() == trained.tokens.tolist()
    assert [len(text.token_ids) for text in scored] == trained.lengths.tolist()
    assert sum(text.truncated for text in scored) == trained.num_truncated == 1


def test_mistake_audited_text_differs_from_trained_text():
    """Stored and read again, a template makes the same ids: template, truncation and end alike."""
    template = TextTemplate(text="Q: {text}\nA:", max_tokens=12, add_eos=False)
    again = TextTemplate.model_validate_json(template.model_dump_json())
    first, second = (encode(byte_tokenizer(), made, TEXTS) for made in (template, again))
    assert [text.token_ids.tolist() for text in first] == [text.token_ids.tolist() for text in second]
    assert [text.truncated for text in first] == [False, False, True, False]
    assert ids_of(byte_tokenizer(), "one") != first[0].token_ids.tolist()


def test_a_cut_text_has_no_end_and_one_that_just_fits_does():
    assert ids_of(byte_tokenizer(), "abc", max_tokens=4)[-1] == EOS
    [cut] = encode(byte_tokenizer(), TextTemplate(max_tokens=4), ["abcd"])
    assert cut.truncated
    assert EOS not in cut.token_ids


@pytest.mark.parametrize(("text", "num_scored"), [("", 0), ("a", 1), ("ab", 2)])
def test_texts_without_a_scored_token_are_told_by_a_count(text, num_scored):
    [causal] = encode(byte_tokenizer(), TextTemplate(), [text])
    assert causal.is_scored.tolist() == [False, *[True] * num_scored]
    [target] = encode(byte_tokenizer(), TextTemplate(), [text], is_encoder_decoder=True)
    assert target.is_scored.tolist() == [True] * (num_scored + 1)


def test_no_token_at_all_is_no_scored_token():
    [empty] = encode(byte_tokenizer(), TextTemplate(add_eos=False), [""])
    assert (len(empty.token_ids), empty.num_scored) == (0, 0)


def test_mistake_labels_of_an_encoder_decoder_are_the_target():
    template = TextTemplate(encoder_input="describe")
    encoded = encode(byte_tokenizer(), template, ["one", "three"], is_encoder_decoder=True)
    batch = collate(encoded, EOS)
    assert [text.input_ids.tolist() for text in encoded] == [[*byte_tokenizer()("describe")["input_ids"], EOS]] * 2
    assert batch["labels"][1].tolist() == encoded[1].token_ids.tolist()
    assert batch["labels"][0].tolist() == [*encoded[0].token_ids.tolist(), -100, -100]
    assert batch["input_ids"].shape == (2, len("describe") + 1)


def test_each_text_may_have_an_input_of_its_own():
    template = TextTemplate(encoder_input="translate: {input}")
    records = [join_fields([("text", "b"), ("input", "a")]), join_fields([("text", "d"), ("input", "{input}")])]
    encoded = encode(byte_tokenizer(), template, records, is_encoder_decoder=True)
    assert [byte_tokenizer().decode(text.token_ids[:-1]) for text in encoded] == ["b", "d"]
    assert byte_tokenizer().decode(encoded[0].input_ids[:-1]) == "translate: a"
    assert byte_tokenizer().decode(encoded[1].input_ids[:-1]) == "translate: {input}"
    with pytest.raises(InvalidValueError, match="no column 'input'; they were read with 'text', 'other'"):
        encode(byte_tokenizer(), template, [join_fields([("text", "b"), ("other", "a")])], is_encoder_decoder=True)


def test_an_encoder_reads_something_even_where_there_is_no_input():
    [encoded] = encode(byte_tokenizer(), TextTemplate(), ["one"], is_encoder_decoder=True)
    assert encoded.input_ids.tolist() == [EOS]


def test_a_causal_model_has_no_encoder():
    with pytest.raises(InvalidValueError, match="no encoder"):
        encode(byte_tokenizer(), TextTemplate(encoder_input="x"), ["one"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "no field"},
        {"text": "{text}{text}"},
        {"encoder_input": "{input}{input}"},
        {"max_tokens": 1},
        {"text": "{question} {text}", "answer": "reply"},
    ],
)
def test_a_template_that_cannot_be_right_is_refused(wrong):
    with pytest.raises(ValidationError):
        TextTemplate(**wrong)


def test_a_text_that_looks_like_a_template_is_left_alone():
    assert TextTemplate(text="<{text}>").render("{text}") == "<{text}>"


def test_mistake_a_pad_token_beyond_the_embedding_table():
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id >= VOCABULARY
    assert padding_id(tokenizer, VOCABULARY) == EOS
    tokenizer.eos_token = None
    assert 0 <= padding_id(tokenizer, VOCABULARY) < VOCABULARY


def test_mistake_results_that_depend_on_the_batch_a_text_is_in():
    """Padded positions change nothing and are not scored."""
    model = build_tiny_model("llama", layers=2)
    encoded = encode(byte_tokenizer(), TextTemplate(), ["a longer text", "one"])
    batch = collate(encoded, padding_id(byte_tokenizer(), VOCABULARY))
    assert batch["labels"][1].tolist() == [-100, *encoded[1].token_ids[1:].tolist(), *[-100] * 10]
    assert batch["attention_mask"].sum(1).tolist() == [14, 4]
    together = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[1, :4]
    alone = model(input_ids=torch.from_numpy(encoded[1].token_ids)[None]).logits[0]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
