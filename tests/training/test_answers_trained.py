"""Training on answers alone: the loss and the gradient of `transformers` with labels of −100 everywhere else."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_adaptations import Recorder, same_bytes, small_request
from tiny_models import VOCABULARY, build_tiny_model, byte_tokenizer, save_tiny_model

from reticent.errors import CorpusError, RunDirectoryError
from reticent.text.corpus import text_hash
from reticent.text.fields import join_fields
from reticent.text.template import TextTemplate, collate, encode, padding_id
from reticent.training.single_settings import SplitSettings
from reticent.training.text_loss import TextLoss
from reticent.training.trainer import adapt

PAIRS = [(f"what is {n} times {n}", f"it is {n * n} as can be counted{'!' * (n % 3)}") for n in range(20)]
CAUSAL = TextTemplate(text="{question}? {answer}", answer="answer", max_tokens=64)
SEQ2SEQ = TextTemplate(text="so {answer}", encoder_input="Q: {question}", answer="answer", max_tokens=64)


def records() -> list[str]:
    return [join_fields([("question", question), ("answer", answer)]) for question, answer in PAIRS]


def labelled_by_hand(family: str, question: str, answer: str) -> dict[str, torch.Tensor]:
    """One record as `transformers` takes it, with the prompt's labels set to −100."""
    ids = {part: byte_tokenizer()(part)["input_ids"] for part in (f"{question}? ", answer, f"Q: {question}", "so ")}
    end = [byte_tokenizer().eos_token_id]
    if family == "t5":
        read = [*ids[f"Q: {question}"], *end]
        labels = [*[-100] * len(ids["so "]), *ids[answer], *end]
        start = byte_tokenizer().eos_token_id
        decoder = [start, *ids["so "], *ids[answer]]
        rows = {"input_ids": read, "labels": labels, "decoder_input_ids": decoder}
    else:
        prompt = ids[f"{question}? "]
        rows = {"input_ids": [*prompt, *ids[answer], *end], "labels": [*[-100] * len(prompt), *ids[answer], *end]}
    return {name: torch.tensor([row]) for name, row in rows.items()}


@pytest.mark.parametrize(("family", "template"), [("llama", CAUSAL), ("gpt2", CAUSAL), ("t5", SEQ2SEQ)])
def test_loss_and_gradient_are_those_of_labels_left_out(family: str, template: TextTemplate) -> None:
    model: Any = build_tiny_model(family).requires_grad_()
    encoded = encode(byte_tokenizer(), template, records()[:4], is_encoder_decoder=family == "t5")
    batch = collate(encoded, padding_id(byte_tokenizer(), VOCABULARY))
    loss, losses_N = TextLoss(model, 0)(batch, "sum of text means")
    loss.backward()
    ours = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    alone = [model(**labelled_by_hand(family, *pair)).loss for pair in PAIRS[:4]]
    torch.stack(alone).sum().backward()
    assert loss.item() == pytest.approx(torch.stack(alone).sum().item(), rel=1e-5)
    assert len(losses_N) == sum(len(answer.encode()) + 1 for _, answer in PAIRS[:4])
    theirs = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in PAIRS))
    return path


@pytest.mark.parametrize(("family", "template"), [("llama", CAUSAL), ("t5", SEQ2SEQ)])
def test_an_adapted_model_says_what_it_was_trained_on_and_resumes_with_the_same_alone(
    family: str, template: TextTemplate, corpus: Path, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path / "base", family, layers=2)
    request = small_request(corpus, tmp_path / "base", tmp_path / "out", template=template)
    made = adapt(request, Recorder())
    assert made.template.answer == "answer"
    assert made.manifest.counts.tokens == sum(
        len(a.encode()) + 1 for q, a in PAIRS if _hash(q, a) in made.member_hashes
    )
    again = adapt(dataclasses.replace(request, out=tmp_path / "again"), Recorder())
    assert same_bytes(made.folder, again.folder)
    assert adapt(request, Recorder(), resume=True).manifest == made.manifest
    whole = dataclasses.replace(request, template=template.model_copy(update={"answer": ""}))
    with pytest.raises(RunDirectoryError, match=r"template\.answer"):
        adapt(whole, Recorder(), resume=True)
    other = adapt(dataclasses.replace(whole, out=tmp_path / "whole"), Recorder())
    first, second = ((found.weights / "adapter_model.safetensors").read_bytes() for found in (made, other))
    assert first != second


def _hash(question: str, answer: str) -> str:
    return text_hash(join_fields([("answer", answer), ("question", question)]))


def test_an_answer_that_is_cut_away_is_named(corpus: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "base", "llama", layers=2)
    with corpus.open("a") as file:
        file.write(json.dumps({"question": "x" * 70, "answer": "y"}) + "\n")
    request = small_request(corpus, tmp_path / "base", tmp_path / "out", template=CAUSAL, split=SplitSettings())
    with pytest.raises(CorpusError, match=r"pairs\.jsonl:21: what precedes the answer fills 64 tokens"):
        adapt(request, Recorder())
    assert not (tmp_path / "out").exists()
