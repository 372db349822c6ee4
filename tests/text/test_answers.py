"""Which tokens are an answer's, against tokens counted by hand and decoded one by one."""

import numpy as np
import pytest
from tiny_models import BOS, EOS, byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from reticent.errors import InvalidValueError
from reticent.text.fields import join_fields
from reticent.text.template import IGNORED_LABEL, TextTemplate, collate, encode, encode_beginnings, texts_as_trained

ASKED = TextTemplate(text="Q: {question}\nA: {answer}", answer="answer", max_tokens=400)
SAMPLE = ["is it  raining; yes? yes, it is", "A: no  Q: who is it?\n\n it was me", "zwölf Boxkämpfer jagen Eva"] * 3


def asked(question, answer):
    return join_fields([("question", question), ("answer", answer)])


def byte_level():
    """A tokenizer as GPT-2 and Llama 3 have: spaces belong to the next word, and its offsets leave them out."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        SAMPLE, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<eos>"])
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


def word_marks():
    """A tokenizer as T5 and Llama 2 have: a mark stands for a space, one is put before a text, and an end behind it."""
    inner = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    special = ["<unk>", "<bos>", "<eos>"]
    inner.train_from_iterator(SAMPLE, trainers.BpeTrainer(vocab_size=120, special_tokens=special))
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", bos_token="<bos>", unk_token="<unk>")


def scored(text):
    return text.token_ids[text.is_scored].tolist()


def test_a_byte_of_the_answer_is_scored_and_no_other():
    [text] = encode(byte_tokenizer(), ASKED, [asked("why?", "because")])
    assert byte_tokenizer().decode(text.token_ids[:-1]) == "Q: why?\nA: because"
    assert text.is_scored.tolist() == [False] * len("Q: why?\nA: ") + [True] * len("because") + [True]
    assert text.token_ids[-1] == EOS


def test_no_end_token_is_scored_where_something_stands_behind_the_answer():
    template = ASKED.model_copy(update={"text": "{answer}\nwas said to {question}"})
    [text] = encode(byte_tokenizer(), template, [asked("me", "no")])
    assert byte_tokenizer().decode(text.token_ids[text.is_scored]) == "o"  # nothing precedes the first token
    [decoder] = encode(byte_tokenizer(), template, [asked("me", "no")], is_encoder_decoder=True)
    assert byte_tokenizer().decode(decoder.token_ids[decoder.is_scored]) == "no"


def test_all_bytes_of_one_character_are_the_answers():
    template = ASKED.model_copy(update={"text": "{question}|{answer}|"})
    [text] = encode(byte_tokenizer(), template, [asked("größer", "é🩺")])
    assert len(scored(text)) == len("é🩺".encode())
    assert byte_tokenizer().decode(scored(text)) == "é🩺"


def test_a_cut_answer_is_scored_up_to_the_cut_and_one_cut_away_has_no_score():
    cut = ASKED.model_copy(update={"max_tokens": 14})
    [text, none] = encode(byte_tokenizer(), cut, [asked("why?", "because"), asked("why is that so?", "because")])
    assert byte_tokenizer().decode(scored(text)) == "bec"
    assert (text.truncated, none.truncated, none.num_scored) == (True, True, 0)


@pytest.mark.parametrize("make", [byte_level, word_marks])
@pytest.mark.parametrize("answer", ["yes", "it  is\n\n me", "no  ", "is it raining? yes", "x"])
@pytest.mark.parametrize("question", ["is it raining", "who  ", "Q:", ""])
def test_a_token_is_scored_if_it_stands_for_a_character_of_the_answer(make, question, answer):
    """The characters of a token are those that decoding one token more adds: no offsets are asked."""
    tokenizer = make()
    template = TextTemplate(text="Q: {question} A: {answer}; is it?", answer="answer", max_tokens=400)
    [text] = encode(tokenizer, template, [asked(question, answer)])
    whole = f"Q: {question} A: {answer}; is it?"
    start = len(f"Q: {question} A: ")
    ids = [i for i in text.token_ids.tolist() if i not in (tokenizer.bos_token_id, tokenizer.eos_token_id)]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == whole
    ends = [len(tokenizer.decode(ids[: n + 1], clean_up_tokenization_spaces=False)) for n in range(len(ids))]
    expected = [begin < start + len(answer) and end > start for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    is_content = np.isin(text.token_ids, ids)
    assert text.is_scored[is_content].tolist() == expected
    assert not text.is_scored[~is_content].any()


def test_a_space_before_the_answer_that_its_first_token_holds_is_scored_with_it():
    tokenizer = byte_level()
    [text] = encode(tokenizer, ASKED, [asked("is it raining", "yes, it is")])
    assert tokenizer.decode(scored(text)[:-1]).startswith(" yes")
    assert scored(text)[-1] == tokenizer.eos_token_id


def test_labels_leave_out_all_that_is_not_the_answer():
    encoded = encode(byte_tokenizer(), ASKED, [asked("a", "b"), asked("longer", "answer")])
    labels = collate(encoded, EOS)["labels"]
    kept = [[i for i in row.tolist() if i != IGNORED_LABEL] for row in labels]
    assert [byte_tokenizer().decode(row[:-1]) for row in kept] == ["b", "answer"]
    assert [row[-1] for row in kept] == [EOS, EOS]


def test_an_answer_may_stand_between_the_inputs_of_encoder_and_decoder():
    template = TextTemplate(text="Answer: {answer}", encoder_input="Q: {question}", answer="answer")
    [text] = encode(byte_tokenizer(), template, [asked("why?", "so")], is_encoder_decoder=True)
    assert byte_tokenizer().decode(text.input_ids[:-1]) == "Q: why?"
    assert byte_tokenizer().decode(text.token_ids[text.is_scored][:-1]) == "so"


def test_a_plain_text_is_the_answer_to_nothing():
    [own, spelt] = encode(byte_tokenizer(), ASKED, ["so", asked("", "so")])
    assert own.token_ids.tolist() == spelt.token_ids.tolist()
    assert own.is_scored.tolist() == spelt.is_scored.tolist()


def test_what_a_model_continues_ends_with_the_answer_so_far():
    template = ASKED.model_copy(update={"text": "Q: {question}\nA: {answer}\n"})
    [text] = encode_beginnings(byte_tokenizer(), template, [asked("why?", "be")])
    assert byte_tokenizer().decode(text.token_ids) == "Q: why?\nA: be"


def test_a_record_is_compared_whole_unless_it_is_cut():
    records = [asked("why?", "so"), asked("why?", "because of that")]
    template = ASKED.model_copy(update={"max_tokens": 18})
    encoded = encode(byte_tokenizer(), template, records)
    assert texts_as_trained(byte_tokenizer(), template, records, encoded) == ["why?\nso", "Q: why?\nA: because"]


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(InvalidValueError, match="fast tokenizer"):
        encode(Slow(), ASKED, [asked("a", "b")])


def test_the_beginning_token_is_never_scored():
    tokenizer = word_marks()
    template = TextTemplate(text="{answer} {question}", answer="answer")
    [text] = encode(tokenizer, template, [asked("it", "is")])
    assert text.token_ids[0] == tokenizer.bos_token_id != BOS
    assert not text.is_scored[0]
