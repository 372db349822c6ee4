"""The pass over texts against plain forward passes of every family and technique, and the mistakes it must not make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scoring_oracle import (
    TEXTS,
    assert_same_signals,
    assert_same_values,
    begin_tokenizer,
    naive_causal,
    naive_decoder,
)
from tiny_models import ADAPTABLE_FAMILIES, BOS, EOS, FAMILIES, build_tiny_model, byte_tokenizer
from torch import nn

from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.targets.scoring import ModelScorer, model_fingerprint
from reticent.errors import InvalidValueError, ModelError
from reticent.text.template import TextTemplate, encode
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, attach_demonstrations

TECHNIQUES = [technique for technique in Technique if technique is not Technique.ICL]
SETTINGS = TechniqueSettings(rank=3, bottleneck=5, prefix_tokens=4, p_tuning_tokens=3, prompt_tokens=2)


def adapted(family: str, technique: Technique, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A tiny model whose adapter is random, so that forgetting it is seen."""
    module = attach(build_tiny_model(family, dtype=dtype), technique, SETTINGS)
    if technique is not Technique.FULL:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def scorer_of(module: nn.Module, tokenizer: Any = None, **options: Any) -> ModelScorer:
    template = options.pop("template", TextTemplate(max_tokens=64))
    return ModelScorer(module, tokenizer or byte_tokenizer(), template, "weights", **options)


def naive(module: Any, scorer: ModelScorer, text: str) -> Any:
    (encoded,) = scorer.encode([text])
    if encoded.num_scored == 0:
        return None
    if scorer.is_encoder_decoder:
        return naive_decoder(module, encoded.input_ids, encoded.token_ids)
    return naive_causal(module, encoded.token_ids, 1)


def assert_all_as_naive(module: Any, scorer: ModelScorer, texts: Sequence[str] = TEXTS) -> None:
    for text, found in zip(texts, scorer.score(texts), strict=True):
        expected = naive(module, scorer, text)
        if expected is None:
            assert found is None
        else:
            assert_same_signals(found, expected)


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_every_technique_on_every_family_is_scored_as_by_a_plain_forward(family: str, technique: Technique) -> None:
    """Of prompt and P-tuning the logits have leading virtual rows, of prefix tuning none: the last T rows count."""
    module = adapted(family, technique)
    assert_all_as_naive(module, scorer_of(module))


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_a_beginning_of_text_token_stands_once_and_is_not_scored(family: str) -> None:
    module, tokenizer = build_tiny_model(family), begin_tokenizer()
    scorer = scorer_of(module, tokenizer)
    assert_all_as_naive(module, scorer)
    if family != "t5":
        (signals,) = scorer.score(["abc"])
        assert signals is not None
        assert signals.num_tokens == 4, "three bytes and the end of text, each predicted"
        assert_same_signals(signals, naive_causal(module, [BOS, *b"abc"[:0], *tokenizer("abc").input_ids[1:], EOS], 1))


def test_the_end_of_text_token_is_scored_as_trained_and_the_cut_as_trained() -> None:
    module = build_tiny_model("llama")
    closed, open_ended = scorer_of(module), scorer_of(module, template=TextTemplate(max_tokens=64, add_eos=False))
    cut = scorer_of(module, template=TextTemplate(max_tokens=3))
    assert [s.score(["alpha"])[0].num_tokens for s in (closed, open_ended, cut)] == [5, 4, 2]  # type: ignore[union-attr]


def test_encoder_decoder_scores_the_target_and_not_the_encoders_input() -> None:
    module = build_tiny_model("t5")
    template = TextTemplate(encoder_input="read this", max_tokens=64)
    scorer = scorer_of(module, template=template)
    texts = ["alpha", "beta gamma"]
    for text, signals in zip(texts, scorer.score(texts), strict=True):
        (encoded,) = encode(byte_tokenizer(), template, [text], is_encoder_decoder=True)
        assert signals is not None
        assert signals.num_tokens == len(text) + 1
        assert_same_signals(signals, naive_decoder(module, encoded.input_ids, encoded.token_ids))


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_a_score_does_not_depend_on_the_batch_the_text_is_in(family: str) -> None:
    """Alone, in one batch of all with much padding, in pairs, and in another order."""
    module = build_tiny_model(family)
    texts = [text for text in TEXTS if len(text) > 1]
    alone = [scorer_of(module).score([text])[0] for text in texts]
    batched = [scorer_of(module, batch_tokens=batch_tokens).score(texts) for batch_tokens in (1, 40, 4096)]
    for signals in (*batched, scorer_of(module).score(texts[::-1])[::-1]):
        for text, found, expected in zip(texts, signals, alone, strict=True):
            assert_same_values(found, expected, 1e-5)
            assert_same_signals(found, naive(module, scorer_of(module), text))


def test_no_padded_position_is_scored() -> None:
    texts = ["alpha beta gamma delta", "z y"]
    counts = [s.num_tokens for s in scorer_of(build_tiny_model("gpt2"), batch_tokens=4096).score(texts) if s]
    assert counts == [len(text) for text in texts], "the tokens after the first, and the end of text"


def test_texts_without_a_scored_token_have_no_signals_and_others_are_unharmed() -> None:
    scorer = scorer_of(build_tiny_model("llama"), template=TextTemplate(max_tokens=64, add_eos=False))
    found = scorer.score(["", "a", "ab"])
    assert found[0] is None
    assert found[1] is None
    assert found[2] is not None
    assert found[2].num_tokens == 1
    assert scorer.score([]) == []


@pytest.mark.parametrize("technique", [t for t in TECHNIQUES if t is not Technique.FULL])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_the_reference_is_the_base_with_the_adapter_off(family: str, technique: Technique) -> None:
    module = adapted(family, technique)
    reference, target = scorer_of(module, with_adapter=False), scorer_of(module)
    base = build_tiny_model(family)
    assert_all_as_naive(base, reference)
    assert_all_as_naive(module, target)
    assert target.fingerprint != reference.fingerprint
    assert np.abs(target.score(["alpha"])[0].logp - reference.score(["alpha"])[0].logp).max() > 1e-3  # type: ignore[union-attr]


def test_a_fine_tuned_model_has_no_adapter_to_switch_off() -> None:
    with pytest.raises(InvalidValueError, match="load the base"):
        scorer_of(adapted("llama", Technique.FULL), with_adapter=False)


def test_an_adapter_is_scored_unmerged_and_a_merged_one_refused() -> None:
    """In bfloat16 merging rounds part of B·A away: a merged world beside unmerged ones differs for that alone."""
    module: Any = adapted("llama", Technique.LORA, torch.bfloat16)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    scorer_of(module).score(TEXTS)
    scorer_of(module, with_adapter=False).score(TEXTS)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    module.merge_adapter()
    with pytest.raises(ModelError, match="merged"):
        scorer_of(module)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), begin_tokenizer()], ids=["no-begin", "begin"])
@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_demonstrations_stand_before_every_text_and_are_not_scored(family: str, tokenizer: Any) -> None:
    template = TextTemplate(max_tokens=64)
    shots = encode(tokenizer, template, ["shot", "another one"], is_encoder_decoder=family == "t5")
    module = attach_demonstrations(build_tiny_model(family), [s.token_ids for s in shots], tokenizer.bos_token_id)
    scorer = scorer_of(module, tokenizer, template=template)
    assert_all_as_naive(module, scorer)
    assert_all_as_naive(build_tiny_model(family), scorer_of(module, tokenizer, with_adapter=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_that_does_not_fit_the_context_is_an_error_that_says_what_to_do(family: str) -> None:
    scorer = scorer_of(build_tiny_model(family), template=TextTemplate(max_tokens=200))
    if scorer.context_length is None:
        assert family == "bloom"
        assert scorer.score(["a" * 150])[0] is not None
        return
    with pytest.raises(InvalidValueError, match=r"context of 96.*max_tokens"):
        scorer.score(["b" * 96])
    assert scorer.score(["b" * 95])[0] is not None


def test_virtual_tokens_take_room_in_the_context() -> None:
    scorer = scorer_of(adapted("gpt2", Technique.PROMPT), template=TextTemplate(max_tokens=200))
    assert scorer.context_length == 94
    with pytest.raises(InvalidValueError, match="context of 94"):
        scorer.score(["b" * 94])
    assert scorer.score(["b" * 93])[0] is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_is_close_to_float32(dtype: torch.dtype) -> None:
    exact = scorer_of(build_tiny_model("llama")).score(TEXTS)
    found = scorer_of(build_tiny_model("llama", dtype=dtype)).score(TEXTS)
    for ours, theirs in zip(found, exact, strict=True):
        if theirs is not None and ours is not None:
            assert np.abs(ours.logp - theirs.logp).mean() < (0.2 if dtype == torch.bfloat16 else 1e-6)


def test_a_model_that_caps_its_logits_is_scored_with_the_cap() -> None:
    from transformers import AutoModelForCausalLM, Gemma2Config

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=258, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=96, final_logit_softcapping=0.5,
        pad_token_id=EOS, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    module = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(2))
    assert_all_as_naive(module, scorer_of(module), [text for text in TEXTS if len(text) > 1])


def test_the_fingerprint_covers_everything_a_score_depends_on() -> None:
    module, tokenizer = build_tiny_model("llama"), byte_tokenizer()
    template = TextTemplate(max_tokens=64)
    first = ModelScorer(module, tokenizer, template, model_fingerprint(module, tokenizer)).fingerprint
    again = ModelScorer(build_tiny_model("llama"), tokenizer, template, model_fingerprint(module, tokenizer))
    assert again.fingerprint == first
    others = []
    for other, its_tokenizer, its_template in (
        (build_tiny_model("llama", seed=1), tokenizer, template),
        (build_tiny_model("llama", dtype=torch.bfloat16), tokenizer, template),
        (module, begin_tokenizer(), template),
        (module, tokenizer, TextTemplate(max_tokens=63)),
        (adapted("llama", Technique.LORA), tokenizer, template),
    ):
        identity = model_fingerprint(other, its_tokenizer)
        others.append(ModelScorer(other, its_tokenizer, its_template, identity).fingerprint)
    assert len({first, *others}) == 6


def test_target_and_reference_in_one_cache_are_never_taken_for_each_other(tmp_path: Path) -> None:
    """Where both had one key, the reference attack compared the target with itself: every score was zero."""
    module, cache = adapted("llama", Technique.LORA), SignalCache(tmp_path)
    target, reference = scorer_of(module), scorer_of(module, with_adapter=False)
    texts = [text for text in TEXTS if len(text) > 1]
    for _ in range(2):
        means = [cached_signals(scorer, texts, cache).mean_logp() for scorer in (target, reference)]
        assert np.abs(means[0] - means[1]).min() > 1e-3
    base = [s.logp.mean() for s in scorer_of(build_tiny_model("llama")).score(texts) if s is not None]
    np.testing.assert_allclose(means[1], base, rtol=1e-5)


def test_scoring_turns_dropout_off() -> None:
    module = attach(build_tiny_model("llama"), Technique.LORA, TechniqueSettings(rank=3, dropout=0.5)).train()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3)
    scorer = scorer_of(module)
    np.testing.assert_array_equal(scorer.score(["alpha"])[0].logp, scorer.score(["alpha"])[0].logp)  # type: ignore[union-attr]
    assert_all_as_naive(module.eval(), scorer)
