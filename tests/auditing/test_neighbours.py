"""Neighbours differ from the text in a few swapped tokens and in nothing else."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scoring_oracle import begin_tokenizer
from tiny_models import EOS, build_tiny_model, byte_tokenizer, save_tiny_model
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from reticent.auditing.inputs.neighbour_sources import BaseResampler, MaskedLm
from reticent.auditing.inputs.neighbours import Tokens, load_or_make_neighbours, neighbours
from reticent.auditing.inputs.swappable import SwappableTokens
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import InvalidValueError, ModelError
from reticent.text.template import TextTemplate

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "rug",
    "##s",
    "##ed",
]
WORDS += [",", "."]
TEXT = "The  cats sat,\n on the mat."


def word_tokenizer() -> Any:
    """BERT's kind: lower-cased word pieces between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens(
        {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    )
    return fast


def tiny_bert() -> Any:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=40, initializer_range=0.2,
        )
    )  # fmt: skip


def masked_lm() -> MaskedLm:
    return MaskedLm(tiny_bert(), word_tokenizer(), "tiny bert", "bert")


def base_resampler(family: str = "llama", tokenizer: Any = None) -> BaseResampler:
    scorer = ModelScorer(build_tiny_model(family), tokenizer or byte_tokenizer(), TextTemplate(max_tokens=64), "base")
    return BaseResampler(scorer)


class Recorder:
    """A source whose model is certain of one token, and which remembers what it was asked."""

    fingerprint = "recorder"

    def __init__(self, favourite: str | None = None) -> None:
        self.tokenizer = word_tokenizer()
        self.swappable = SwappableTokens(self.tokenizer, len(WORDS))
        self.favourite = favourite
        self.places: list[NDArray[np.int64]] = []

    def tokens(self, text: str) -> Tokens:
        return MaskedLm(tiny_bert(), self.tokenizer, "", "").tokens(text)

    def proposals(self, tokens: Tokens, places: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.float32]]:
        self.places += places
        for at in places:
            logits = np.zeros((len(at), len(WORDS)), dtype=np.float32)
            if self.favourite is not None:
                logits[:, WORDS.index(self.favourite)] = 1e4
            yield logits


@pytest.mark.parametrize(
    "source", [masked_lm(), base_resampler(), base_resampler("t5"), base_resampler(tokenizer=begin_tokenizer())]
)
def test_no_neighbour_is_the_text_and_no_two_are_the_same(source: Any) -> None:
    (found,) = neighbours([TEXT], 12, source, seed=0)
    assert len(found) == 12
    assert len({TEXT, *found}) == 13


@pytest.mark.parametrize("favourite", ["[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]"])
def test_special_tokens_are_neither_swapped_nor_swapped_in(favourite: str) -> None:
    """Also where the model finds nothing likelier."""
    source = Recorder(favourite)
    (found,) = neighbours([TEXT], 25, source, seed=1)
    assert found
    assert not any("[" in neighbour for neighbour in found)
    ids = source.tokens(TEXT).ids
    assert {int(ids[place]) for at in source.places for place in at}.isdisjoint(source.tokenizer.all_special_ids)


def test_everything_around_a_swap_stays_to_the_byte() -> None:
    """One swap in nine tokens, always for a dog: by hand, letter case and blank space included."""
    (found,) = neighbours([TEXT], 12, Recorder("dog"), seed=0)
    assert set(found) <= {
        "dog  cats sat,\n on the mat.",
        "The  dogs sat,\n on the mat.",
        "The  cated sat,\n on the mat.",
        "The  cats dog,\n on the mat.",
        "The  cats satdog\n on the mat.",
        "The  cats sat,\n dog the mat.",
        "The  cats sat,\n on dog mat.",
        "The  cats sat,\n on the dog.",
        "The  cats sat,\n on the matdog",
    }
    assert len(found) >= 6


def test_a_token_is_swapped_for_one_of_its_kind() -> None:
    """`##s` inside a word for `##ed`, never for a word; a word never for a piece of one."""
    (found,) = neighbours(["cats"], 30, Recorder("##s"), seed=0)
    assert all(" " not in neighbour and "#" not in neighbour for neighbour in found)
    assert {n.removesuffix("s") for n in found if n.endswith("s")} <= {*WORDS[5:13], ",", "."}
    assert {n for n in found if not n.endswith("s")} <= {"cated"}


def test_a_masked_model_reads_the_mask_and_both_sides() -> None:
    source, model, tokenizer = masked_lm(), tiny_bert().eval(), word_tokenizer()
    tokens = source.tokens("the cat sat on the mat")
    at = np.array([2, 5])
    (found,) = source.proposals(tokens, [at])
    ids = torch.tensor([tokenizer("the cat sat on the mat").input_ids])
    ids[0, torch.from_numpy(at)] = tokenizer.mask_token_id
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, torch.from_numpy(at)]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_base_proposes_from_what_stands_to_the_left(family: str) -> None:
    source, model = base_resampler(family), build_tiny_model(family)
    tokens = source.tokens("alpha beta")
    at = np.array([1, 7])
    (found,) = source.proposals(tokens, [at])
    ids = torch.tensor([byte_tokenizer()("alpha beta").input_ids])
    with torch.no_grad():
        if family == "t5":
            logits = model(input_ids=torch.tensor([[EOS]]), labels=ids).logits[0, torch.from_numpy(at)]
        else:
            logits = model(input_ids=ids).logits[0, torch.from_numpy(at - 1)]
    np.testing.assert_allclose(found, logits.numpy(), rtol=1e-4, atol=1e-4)


def test_neighbours_depend_on_text_and_seed_alone() -> None:
    source = base_resampler()
    both = neighbours([TEXT, "alpha beta gamma"], 5, source, seed=3)
    assert neighbours(["alpha beta gamma", TEXT], 5, source, seed=3) == both[::-1]
    assert neighbours([TEXT], 5, source, seed=4) != both[:1]


@pytest.mark.parametrize("text", ["", " ", "a", "🦉"])
def test_a_text_without_a_place_to_swap_has_no_neighbours(text: str) -> None:
    assert neighbours([text], 3, base_resampler(), seed=0) == [[]]


def test_no_part_of_a_character_is_swapped() -> None:
    (found,) = neighbours(["naïve 🦉 owl"], 20, base_resampler(), seed=0)
    assert all("🦉" in neighbour and "ï" in neighbour for neighbour in found)


def test_neighbours_are_made_once_and_read_again(tmp_path: Path) -> None:
    source, texts = Recorder(), [TEXT, "the dog ran", ""]
    steps: list[int] = []
    first = load_or_make_neighbours(texts, 4, source, 0, tmp_path, steps.append)
    asked = len(source.places)
    again = load_or_make_neighbours(texts[::-1], 4, source, 0, tmp_path)
    assert len(source.places) == asked
    assert again == first
    assert steps == [3]
    assert list(first.values()) == neighbours(texts, 4, source, 0)
    other = load_or_make_neighbours(texts, 4, source, 1, tmp_path)
    assert other != first
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_text_beyond_the_models_reach_keeps_its_end() -> None:
    text = " ".join(["the cat sat on the mat"] * 20)
    (found,) = neighbours([text], 3, masked_lm(), seed=0)
    assert found
    assert all(neighbour.endswith(text[-200:]) for neighbour in found)


def test_what_is_no_masked_model_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "causal", "llama")
    with pytest.raises(ModelError, match="masked language model"):
        MaskedLm.open(str(tmp_path / "causal"))
    with pytest.raises(ModelError, match="mask token"):
        MaskedLm(tiny_bert(), byte_tokenizer(), "bytes", "")
    with pytest.raises(InvalidValueError, match="n must be"):
        neighbours([TEXT], 0, Recorder(), seed=0)


def test_a_masked_model_is_loaded_from_its_folder_and_a_headless_one_refused(tmp_path: Path) -> None:
    whole, headless = tmp_path / "whole", tmp_path / "headless"
    tiny_bert().save_pretrained(whole)
    tiny_bert().bert.save_pretrained(headless)
    for folder in (whole, headless):
        word_tokenizer().save_pretrained(folder)
    source = MaskedLm.open(str(whole))
    assert neighbours([TEXT], 2, source, 0) == neighbours([TEXT], 2, masked_lm(), 0)
    assert len(source.fingerprint) == 64
    with pytest.raises(ModelError, match="lacks the weights"):
        MaskedLm.open(str(headless))
