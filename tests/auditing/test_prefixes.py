"""ReCaLL's conditional scores against one long plain forward pass, and the mistakes made with prefixes elsewhere."""

from typing import Any

import numpy as np
import pytest
import torch
from scoring_oracle import assert_same_signals, assert_same_values, begin_tokenizer, naive_causal
from tiny_models import BOS, EOS, FAMILIES, build_tiny_model, byte_tokenizer

from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.inputs.prefixes import PrefixedScorer, longest_text
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import InvalidValueError
from reticent.protocols import TokenSignals
from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, attach_demonstrations

SHOTS = ("first shot", "second", "third one")
TEXTS = ("alpha beta", "gamma", "", "delta epsilon zeta", "first shot")
SETTINGS = TechniqueSettings(rank=3, bottleneck=5, prefix_tokens=4, p_tuning_tokens=3, prompt_tokens=2)
BOTH_TOKENIZERS = pytest.mark.parametrize("tokenizer", [byte_tokenizer(), begin_tokenizer()], ids=["no-begin", "begin"])


def prefixed_signals(scorer, prefix_texts, texts):
    return PrefixedScorer(scorer, prefix_texts, longest_text(scorer, texts)).score(texts)


def scorer_of(module: Any, tokenizer: Any, max_tokens: int = 32) -> ModelScorer:
    return ModelScorer(module, tokenizer, TextTemplate(max_tokens=max_tokens), "weights")


def whole_ids(tokenizer: Any, shots: tuple[str, ...], text: str) -> tuple[list[int], int]:
    """All tokens of prefix and text as bytes, and where the scored tokens begin; without the code under test."""
    begins = tokenizer("x").input_ids[0] == BOS
    prefix = [byte_id for shot in shots for byte_id in tokenizer(shot + "\n\n", add_special_tokens=False).input_ids]
    own = [*tokenizer(text, add_special_tokens=False).input_ids, EOS]
    ids = [BOS] * begins + prefix + own
    # Without a beginning-of-text token the text's first token is not scored, with or without a prefix.
    return ids, len(ids) - len(own) + (0 if begins else 1)


def assert_conditional(module: Any, tokenizer: Any, found: list[TokenSignals | None]) -> None:
    for text, signals in zip(TEXTS, found, strict=True):
        shots = tuple(shot for shot in SHOTS if shot != text)
        ids, first = whole_ids(tokenizer, shots, text)
        if first >= len(ids):
            assert signals is None
            continue
        assert_same_signals(signals, naive_causal(module, ids, first))


@BOTH_TOKENIZERS
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_read_once_conditions_as_one_read_with_every_text(family: str, tokenizer: Any) -> None:
    module = build_tiny_model(family)
    assert_conditional(module, tokenizer, prefixed_signals(scorer_of(module, tokenizer), SHOTS, TEXTS))


@pytest.mark.parametrize("technique", [t for t in Technique if t is not Technique.ICL])
@pytest.mark.parametrize("family", ["llama", "opt", "bloom"])
def test_virtual_tokens_stand_before_the_prefix(family: str, technique: Technique) -> None:
    module: Any = attach(build_tiny_model(family), technique, SETTINGS)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    tokenizer = byte_tokenizer()
    assert_conditional(module.eval(), tokenizer, prefixed_signals(scorer_of(module, tokenizer), SHOTS, TEXTS))


@BOTH_TOKENIZERS
def test_a_prefix_stands_after_demonstrations(tokenizer: Any) -> None:
    demonstration = np.array([*b"shown", EOS])
    module = attach_demonstrations(build_tiny_model("llama"), [demonstration], BOS)
    found = prefixed_signals(scorer_of(module, tokenizer, 20), SHOTS[:2], ["alpha"])
    ids, first = whole_ids(tokenizer, SHOTS[:2], "alpha")
    begins = int(ids[0] == BOS)
    ids = [*ids[:begins], *demonstration.tolist(), *ids[begins:]]
    assert_same_signals(found[0], naive_causal(build_tiny_model("llama"), ids, first + len(demonstration)))


def test_prefix_tokens_are_not_in_the_mean() -> None:
    scorer = scorer_of(build_tiny_model("llama"), byte_tokenizer())
    conditional, unconditional = prefixed_signals(scorer, SHOTS, TEXTS), scorer.score(TEXTS)
    for prefixed, alone in zip(conditional, unconditional, strict=True):
        assert (prefixed is None) == (alone is None)
        if prefixed is not None and alone is not None:
            assert prefixed.num_tokens == alone.num_tokens
            assert not np.allclose(prefixed.logp, alone.logp)


def test_a_text_is_not_in_its_own_prefix_and_changes_no_other() -> None:
    scorer = scorer_of(build_tiny_model("llama"), byte_tokenizer())
    together = prefixed_signals(scorer, SHOTS, [SHOTS[1], "alpha beta gamma"])
    without = prefixed_signals(scorer, (SHOTS[0], SHOTS[2]), [SHOTS[1], "alpha beta gamma"])
    other = prefixed_signals(scorer, SHOTS, ["alpha beta gamma"])
    assert_same_values(without[0], together[0], 1e-5)
    assert_same_values(other[0], together[1], 1e-5)
    with pytest.raises(InvalidValueError, match="only text of its own prefix") as refused:
        prefixed_signals(scorer, ["a private text"], ["a private text"])
    assert "private" not in str(refused.value)


def test_shots_are_dropped_whole_until_prefix_and_longest_text_fit() -> None:
    module, tokenizer = build_tiny_model("llama"), byte_tokenizer()
    scorer = scorer_of(module, tokenizer, 60)
    # Context 96; the longest text has 60 tokens, and a shot of 15 with its blank line 17: two fit.
    shots = [letter * 15 for letter in "pqrs"]
    texts = ["z" * 59, "short"]
    prefixed = PrefixedScorer(scorer, shots, 60)
    assert prefixed.num_shots == 2
    ids, first = whole_ids(tokenizer, tuple(shots[:2]), texts[1])
    assert_same_signals(prefixed.score(texts)[1], naive_causal(module, ids, first))


@pytest.mark.parametrize("shots", [[], ["   "], ["x" * 40]])
def test_an_empty_prefix_is_an_error(shots: list[str]) -> None:
    scorer = scorer_of(build_tiny_model("llama"), byte_tokenizer(), 60)
    with pytest.raises(InvalidValueError, match=r"prefix"):
        prefixed_signals(scorer, shots, ["z" * 59])


def test_an_encoder_decoder_reads_the_prefix_in_its_decoder() -> None:
    module, tokenizer = build_tiny_model("t5"), byte_tokenizer()
    scorer = scorer_of(module, tokenizer)
    (found,) = prefixed_signals(scorer, SHOTS, ["alpha"])
    ids, _ = whole_ids(tokenizer, SHOTS, "alpha")
    encoder_ids = torch.from_numpy(scorer.encode(["alpha"])[0].input_ids)[None]
    with torch.no_grad():
        logits = module(input_ids=encoder_ids, labels=torch.tensor([ids])).logits[0].double().log_softmax(1)
    assert found is not None
    np.testing.assert_allclose(found.logp, logits[range(len(ids)), ids][-6:], rtol=1e-4, atol=1e-4)


def test_scores_behind_other_prefixes_are_cached_apart(tmp_path: Any) -> None:
    scorer, cache = scorer_of(build_tiny_model("llama"), byte_tokenizer()), SignalCache(tmp_path)
    one, two = (PrefixedScorer(scorer, shots, 32) for shots in (SHOTS[:1], SHOTS[:2]))
    tables = [cached_signals(s, ["alpha"], cache) for s in (scorer, one, two, one)]
    assert len({scorer.fingerprint, one.fingerprint, two.fingerprint}) == 3
    means = [table.mean_logp()[0] for table in tables]
    assert len(set(means)) == 3
    assert means[1] == means[3]
