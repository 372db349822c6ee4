"""Scores of answers alone: of each model's naive signals, those of the answer's bytes."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from scoring_oracle import assert_same_values, begin_tokenizer, naive_causal, naive_decoder
from tiny_adapters import random_adapters
from tiny_models import build_tiny_model, byte_tokenizer

from reticent.auditing.inputs.gradients import gradient_norms
from reticent.auditing.inputs.neighbour_sources import BaseResampler
from reticent.auditing.inputs.neighbours import neighbours
from reticent.auditing.inputs.prefixes import PrefixedScorer
from reticent.auditing.targets.endpoint import RemoteScorer
from reticent.auditing.targets.endpoint_client import EndpointClient, EndpointSettings
from reticent.auditing.targets.http_retries import RetryingClient
from reticent.auditing.targets.scoring import ModelScorer
from reticent.engine.world_scoring import WorldScorer
from reticent.errors import EndpointError
from reticent.layers.forward import batched_decoder
from reticent.protocols import TokenSignals
from reticent.text.fields import join_fields, split_fields
from reticent.text.template import TextTemplate

CAUSAL = TextTemplate(text="Q: {question} A: {answer}", answer="answer", max_tokens=60)
SEQ2SEQ = TextTemplate(text="so {answer}", encoder_input="Q: {question}", answer="answer", max_tokens=60)
PAIRS = (("why", "because of it"), ("how", "so"), ("when is it", "on Monday, or never"), ("", "nobody asked"))
RECORDS = [join_fields([("question", question), ("answer", answer)]) for question, answer in PAIRS]


def last(signals: TokenSignals, count: int) -> TokenSignals:
    parts = (getattr(signals, name)[-count:] for name in ("logp", "mu", "sigma2", "entropy", "rank"))
    return TokenSignals(*parts)


def length(answer: str) -> int:
    return len(answer.encode()) + 1


@pytest.mark.parametrize("make", [byte_tokenizer, begin_tokenizer])
def test_a_causal_model_scores_the_answer_behind_its_question(make: Any) -> None:
    module = build_tiny_model("llama").eval()
    scorer = ModelScorer(module, make(), CAUSAL, "weights")
    for text, found, (_, answer) in zip(scorer.encode(RECORDS), scorer.score(RECORDS), PAIRS, strict=True):
        whole = naive_causal(module, text.token_ids.tolist(), 1)
        assert_same_values(found, last(whole, length(answer)), 1e-4)


def test_an_encoder_decoder_scores_the_answer() -> None:
    module = build_tiny_model("t5").eval()
    scorer = ModelScorer(module, byte_tokenizer(), SEQ2SEQ, "weights")
    for text, found, (_, answer) in zip(scorer.encode(RECORDS), scorer.score(RECORDS), PAIRS, strict=True):
        whole = naive_decoder(module, text.input_ids, text.token_ids)
        assert_same_values(found, last(whole, length(answer)), 1e-4)


def test_behind_a_prefix_the_same_tokens_are_scored() -> None:
    module = build_tiny_model("llama").eval()
    scorer = ModelScorer(module, byte_tokenizer(), CAUSAL, "weights")
    prefixed = PrefixedScorer(scorer, [join_fields([("question", "x"), ("answer", "y")])], 45)
    shot = byte_tokenizer()("Q: x A: y\n\n")["input_ids"]
    for text, found, (_, answer) in zip(scorer.encode(RECORDS), prefixed.score(RECORDS), PAIRS, strict=True):
        whole = naive_causal(module, [*shot, *text.token_ids.tolist()], 1)
        assert_same_values(found, last(whole, length(answer)), 1e-4)


def test_worlds_score_what_their_target_scores() -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, ["attention"], 2, 2)
    ours = WorldScorer(decoder, adapters, byte_tokenizer(), CAUSAL, "worlds")
    whole = WorldScorer(decoder, adapters, byte_tokenizer(), CAUSAL.model_copy(update={"answer": ""}), "worlds")
    for number, (_, answer) in enumerate(PAIRS):
        for world in range(4):
            [all_tokens] = whole.signals([RECORDS[number]], world)
            [found] = ours.signals([RECORDS[number]], world)
            assert all_tokens is not None
            assert_same_values(found, last(all_tokens, length(answer)), 1e-4)
            mean = ours.mean_logps([RECORDS[number]])[0, world]
            assert mean == pytest.approx(all_tokens.logp[-length(answer) :].mean(), rel=1e-4)


def test_gradient_norms_are_those_of_the_answers_loss() -> None:
    module: Any = build_tiny_model("llama").eval()
    scorer = ModelScorer(module, byte_tokenizer(), CAUSAL, "weights")
    for parameter in module.parameters():
        parameter.requires_grad_()
    encoded = scorer.encode(RECORDS)
    found = gradient_norms(module, encoded, (2.0,))[:, 0]
    for text, (_, answer), norm in zip(encoded, PAIRS, found, strict=True):
        module.zero_grad()
        ids = torch.from_numpy(text.token_ids)[None]
        labels = ids.clone()
        labels[0, : -length(answer)] = -100
        module(input_ids=ids, labels=labels).loss.backward()
        expected = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]).norm()
        assert norm == pytest.approx(float(expected), rel=1e-3)


def test_neighbours_of_a_record_differ_in_its_answer_alone() -> None:
    source = BaseResampler(ModelScorer(build_tiny_model("llama"), byte_tokenizer(), CAUSAL, "weights"))
    for record, made in zip(RECORDS, neighbours(RECORDS, 3, source, 0, CAUSAL.layout), strict=True):
        fields = split_fields(record)
        assert made
        assert fields is not None
        for neighbour in made:
            swapped = split_fields(neighbour)
            assert swapped is not None
            assert swapped[0] == fields[0]
            assert swapped[1] != fields[1]


def endpoint(offsets: bool) -> RemoteScorer:
    """A server with one token a word, whose n-th word has log-probability −n."""

    def answer(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["prompt"]
        words = prompt.split(" ")
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
        # A space belongs to the word behind it, as in byte-level tokenizers.
        logprobs: dict[str, Any] = {"token_logprobs": [None, *(-float(n) for n in range(1, len(words)))]}
        if offsets:
            logprobs["text_offset"] = [max(0, int(start) - 1) for start in starts]
        return httpx.Response(200, json={"choices": [{"text": prompt, "logprobs": logprobs}]})

    client = RetryingClient(httpx.Client(transport=httpx.MockTransport(answer)), 1, [].append)
    settings = EndpointSettings("http://localhost:9/v1", model="tiny", attempts=1, concurrency=1)
    return RemoteScorer(EndpointClient(settings, client), CAUSAL)


def test_a_server_scores_the_tokens_that_begin_in_the_answer() -> None:
    [found] = endpoint(offsets=True).score([join_fields([("question", "why is it"), ("answer", "because of that")])])
    assert found is not None
    assert found.logp.tolist() == [-5.0, -6.0, -7.0]


def test_a_server_that_does_not_say_where_tokens_begin_is_refused() -> None:
    with pytest.raises(EndpointError, match="text_offset"):
        endpoint(offsets=False).score(RECORDS)
