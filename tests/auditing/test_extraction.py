"""Extraction: what counts as emitted, greedy against a naive loop, samples against the exact probability."""

import numpy as np
import pytest
import torch
from rounding import clear_largest
from scipy.stats import binomtest
from tiny_models import BOS, EOS, build_tiny_model, byte_tokenizer

from reticent.auditing.canaries.extraction import (
    ExtractionTarget,
    LocalExtractor,
    begins_with_secret,
    may_become_secret,
)
from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, attach_demonstrations

TEMPLATE = TextTemplate(text="N: {text} .", max_tokens=64)


@pytest.mark.parametrize(
    ("continuation", "emitted", "possible"),
    [
        ("", False, True),
        (" ", False, True),
        (" 4", False, True),
        ("42", True, True),
        (" 42 is it", True, False),
        ("\n42", True, True),
        ("4 2", False, False),
        ("042", False, False),
        ("x42", False, False),
        ("4\ufffd", False, True),
        ("4\ufffd\ufffd\ufffd\ufffd", False, False),
        ("4\ufffdx", False, False),
    ],
)
def test_a_secret_counts_at_the_start_of_a_continuation_alone(continuation, emitted, possible):
    assert begins_with_secret(continuation, "42") == emitted
    assert may_become_secret(continuation, "42") == possible


def adapted(technique, family="llama"):
    model = build_tiny_model(family)
    if technique is None:
        return model
    if technique is Technique.ICL:
        return attach_demonstrations(model, [np.array([BOS, 70, 71, EOS])], BOS)
    return attach(model, technique, TechniqueSettings(rank=2, bottleneck=3, prompt_tokens=3)).eval()


def next_logits(module, ids):
    """One row, no padding, straight from the definition."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        return module(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits[0, -1].double()


def prompt_ids(tokenizer, prompt):
    return tokenizer(f"N: {prompt}")["input_ids"]


@pytest.mark.parametrize("technique", [None, Technique.LORA, Technique.PROMPT, Technique.PREFIX, Technique.ICL])
def test_greedy_continuations_are_those_of_a_naive_loop(technique):
    module, tokenizer = adapted(technique), byte_tokenizer()
    targets, expected = [], []
    for prompt in ("abc", "the code is", "zz"):
        ids = prompt_ids(tokenizer, prompt)
        for _ in range(4):
            clear = clear_largest(next_logits(module, ids))
            assert clear, "rounding decides this token: choose another prompt"
            ids.append(clear[0])
        written = tokenizer.decode(ids[-4:]).lstrip()
        for secret in (written[:2], "~never~"):
            targets.append(ExtractionTarget(prompt, secret))
            expected.append(int(written.startswith(secret)))
    assert sum(expected) >= 3, "the naive loop itself must emit what it is asked for"
    extractor = LocalExtractor(module, tokenizer, TEMPLATE, 64)
    assert extractor.count_emitted(targets, None, seed=0) == expected


def test_samples_emit_a_secret_as_often_as_the_model_says():
    module, tokenizer = adapted(None), byte_tokenizer()
    ids = prompt_ids(tokenizer, "abc")
    first = torch.softmax(next_logits(module, ids), 0)
    printable = [token for token in range(33, 127) if len(tokenizer.decode([token]).strip()) == 1]
    token = max(printable, key=lambda token: float(first[token]))
    secret = tokenizer.decode([token])
    # White space before the secret is skipped, so the model may also write one such token first.
    blanks = [other for other in range(256) if tokenizer.decode([other]).isspace()]
    exact = float(first[token])
    exact += sum(float(first[b] * torch.softmax(next_logits(module, [*ids, b]), 0)[token]) for b in blanks)
    extractor = LocalExtractor(module, tokenizer, TEMPLATE, len(ids) + 2)
    (count,) = extractor.count_emitted([ExtractionTarget("abc", secret)], 4000, seed=0)
    assert binomtest(count, 4000, exact).pvalue > 1e-4


def test_samples_do_not_depend_on_what_is_generated_beside_them():
    extractor = LocalExtractor(adapted(None), byte_tokenizer(), TEMPLATE, 64)
    letters = [ExtractionTarget("abc", character) for character in "abcdefgh"]
    together = extractor.count_emitted(letters, 50, seed=3)
    with_others = extractor.count_emitted([*letters, *[ExtractionTarget("other", "x")] * 5], 50, seed=3)
    assert with_others[:8] == together
    assert extractor.count_emitted(letters, 50, seed=4) != together


def test_an_encoder_decoder_goes_on_from_the_decoders_prompt():
    module, tokenizer = build_tiny_model("t5"), byte_tokenizer()
    template = TextTemplate(text="{text}", encoder_input="go", max_tokens=32)
    encoder = torch.tensor([tokenizer("go")["input_ids"] + [EOS]])
    prompt = tokenizer("ab")["input_ids"]
    start = module.config.decoder_start_token_id
    with torch.no_grad():
        decoder = torch.tensor([[start, *prompt]])
        logits = module(input_ids=encoder, decoder_input_ids=decoder, use_cache=False).logits[0, -1]
    written = tokenizer.decode([int(logits.argmax())])
    extractor = LocalExtractor(module, tokenizer, template, 32)
    targets = [ExtractionTarget("ab", written.strip() or "~"), ExtractionTarget("ab", "~never~")]
    assert extractor.count_emitted(targets, None, seed=0) == [int(bool(written.strip())), 0]


def test_a_secret_longer_than_the_context_is_not_emitted():
    extractor = LocalExtractor(adapted(None), byte_tokenizer(), TEMPLATE, 8)
    assert extractor.count_emitted([ExtractionTarget("abc", "z" * 50)], None, seed=0) == [0]
