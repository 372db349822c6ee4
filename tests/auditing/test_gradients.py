"""Gradient norms against one plain backward pass a text, for every technique, and the mistakes seen elsewhere."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fake_targets import Notes
from test_audit_run import request
from tiny_models import ADAPTABLE_FAMILIES, build_tiny_model, byte_tokenizer
from torch import nn

from reticent.auditing.inputs import gradients
from reticent.auditing.inputs.gradients import adaptation_gradients, gradient_norms
from reticent.auditing.run import run_audit
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target, TargetKind
from reticent.errors import InvalidValueError
from reticent.text.corpus import text_hash
from reticent.text.template import EncodedText, TextTemplate, encode
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, technique_parameters

TECHNIQUES = [technique for technique in Technique if technique is not Technique.ICL]
BY_BATCH = (Technique.LORA, Technique.ADAPTER_H, Technique.ADAPTER_P, Technique.PARALLEL)
TEXTS = ("alpha beta", "gamma delta epsilon", "zeta", "eta theta iota kappa", "lambda")


def adapted(family: str, technique: Technique, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    settings = TechniqueSettings(
        rank=3, bottleneck=5, prefix_tokens=4, p_tuning_tokens=3, prompt_tokens=2, dropout=dropout
    )
    module = attach(build_tiny_model(family, dtype=dtype), technique, settings)
    if technique is not Technique.FULL:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in technique_parameters(module):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


def encoded(family: str, texts: tuple[str, ...] = TEXTS) -> list[EncodedText]:
    return encode(byte_tokenizer(), TextTemplate(max_tokens=32), texts, is_encoder_decoder=family == "t5")


def naive_norms(module: Any, texts: list[EncodedText]) -> np.ndarray:
    """`loss.backward()` as the model's own loss has it, a text at a time; all gradients as one vector, float64."""
    module.eval()
    rows = []
    for text in texts:
        module.zero_grad(set_to_none=True)
        labels = torch.from_numpy(text.token_ids)[None].clone()
        read = labels if text.input_ids is None else torch.from_numpy(text.input_ids)[None]
        logits = module(input_ids=read, attention_mask=torch.ones_like(read), labels=labels).logits
        own = logits[0, -labels.shape[1] :]
        rows_of_targets = own[:-1] if text.input_ids is None else own
        loss = torch.nn.functional.cross_entropy(rows_of_targets, labels[0, int(text.input_ids is None) :])
        loss.backward()
        whole = torch.cat([p.grad.flatten().double() for p in module.parameters() if p.grad is not None])
        rows.append([whole.abs().sum().item(), whole.square().sum().sqrt().item(), whole.abs().max().item()])
    module.zero_grad(set_to_none=True)
    return np.array(rows)


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_norms_are_those_of_one_backward_pass_a_text(family: str, technique: Technique) -> None:
    module = adapted(family, technique)
    texts = encoded(family)
    expected = naive_norms(module, texts)
    assert expected[:, 1].min() > 1e-4
    np.testing.assert_allclose(gradient_norms(module, texts), expected, rtol=2e-4)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("technique", BY_BATCH)
def test_linear_adapters_take_many_texts_in_one_pass(technique: Technique, monkeypatch: pytest.MonkeyPatch) -> None:
    module, texts = adapted("llama", technique), encoded("llama")
    alone = gradient_norms(module, texts, batch_tokens=1)
    passes = []
    genuine = gradients._Norms._loss_of
    monkeypatch.setattr(
        gradients._Norms, "_loss_of", lambda self, batch: (passes.append(len(batch)), genuine(self, batch))[1]
    )
    together = gradient_norms(module, texts, batch_tokens=4096)
    assert passes == [len(texts), 1, 1], "everything at once, and two texts of it alone"
    np.testing.assert_allclose(together, alone, rtol=1e-4)


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_the_attack_runs_on_every_technique_that_trains(technique: Technique, tmp_path: Path) -> None:
    module = adapted("llama", technique)
    scorer = ModelScorer(module, byte_tokenizer(), TextTemplate(max_tokens=32), technique.value)
    target = Target(TargetKind.ADAPTED, {"name": technique.value}, scorer, scorer.template, module=module)
    result = run_audit(request(tmp_path, target, "gradient-norm", TEXTS[:2], TEXTS[2:]), Notes())
    assert [attack.name for attack in result.attacks] == ["gradient-norm"]
    table = pq.read_table(tmp_path / "out" / "scores.parquet").to_pydict()
    found = dict(zip(table["text_hash"], table["gradient-norm"], strict=True))
    for text, norms in zip(TEXTS, naive_norms(adapted("llama", technique), encoded("llama")), strict=True):
        assert -found[text_hash(text)] == pytest.approx(norms[1], rel=1e-3)


def test_a_norm_does_not_depend_on_the_batch_the_text_is_in() -> None:
    module = adapted("llama", Technique.LORA)
    together = gradient_norms(module, encoded("llama"))
    backwards = gradient_norms(module, encoded("llama", TEXTS[::-1]))[::-1]
    alone = np.concatenate([gradient_norms(module, encoded("llama", (text,))) for text in TEXTS])
    np.testing.assert_allclose(backwards, together, rtol=1e-4)
    np.testing.assert_allclose(alone, together, rtol=1e-4)


def test_a_module_that_mixes_texts_is_found_out_and_texts_are_taken_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module, texts = adapted("llama", Technique.LORA), encoded("llama")
    expected = gradient_norms(module, texts, batch_tokens=1)
    genuine = gradients._weight_gradient
    monkeypatch.setattr(
        gradients, "_weight_gradient", lambda x, g: genuine(x, g).mean(0, keepdim=True).expand(len(x), -1, -1)
    )
    np.testing.assert_allclose(gradient_norms(module, texts), expected, rtol=1e-4)


def test_an_output_that_is_changed_in_place_is_found_out_too() -> None:
    module, texts = adapted("llama", Technique.LORA), encoded("llama")
    for name, part in module.named_modules():
        if type(part) is nn.Linear and "lora_A" in name:
            part.register_forward_hook(lambda _module, _inputs, output: output.mul_(3.0))
    np.testing.assert_allclose(gradient_norms(module, texts), naive_norms(module, texts), rtol=2e-4)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_dropout_is_off_also_for_a_module_in_train_mode(family: str) -> None:
    module = adapted(family, Technique.LORA, dropout=0.5)
    expected = naive_norms(module, encoded(family))
    module.train()
    np.testing.assert_allclose(gradient_norms(module, encoded(family)), expected, rtol=2e-4)
    assert module.training


def test_a_frozen_adapter_is_refused_and_can_be_enabled_for_a_while() -> None:
    """With `requires_grad` off everywhere a gradient attack computes zero for every text, or fails deep inside."""
    module = adapted("llama", Technique.LORA)
    expected = gradient_norms(module, encoded("llama"))
    module.requires_grad_(requires_grad=False)
    with pytest.raises(InvalidValueError, match="frozen"):
        gradient_norms(module, encoded("llama"))
    with adaptation_gradients(module):
        np.testing.assert_allclose(gradient_norms(module, encoded("llama")), expected, rtol=1e-6)
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_only_the_adapters_parameters_count() -> None:
    module = adapted("llama", Technique.LORA)
    expected = gradient_norms(module, encoded("llama"))
    module.requires_grad_(requires_grad=True)
    assert (gradient_norms(module, encoded("llama"))[:, 1] > 1.01 * expected[:, 1]).all()
    with adaptation_gradients(module):
        np.testing.assert_allclose(gradient_norms(module, encoded("llama")), expected, rtol=1e-6)


@pytest.mark.parametrize("technique", [Technique.LORA, Technique.FULL])
def test_bfloat16_is_as_close_to_float32_as_a_plain_pass_in_bfloat16(technique: Technique) -> None:
    exact = naive_norms(adapted("llama", technique), encoded("llama"))[:, 1]
    plain = naive_norms(adapted("llama", technique, dtype=torch.bfloat16), encoded("llama"))[:, 1]
    found = gradient_norms(adapted("llama", technique, dtype=torch.bfloat16), encoded("llama"), (2.0,))[:, 0]
    assert np.abs(np.log(found / exact)).mean() <= 1.5 * np.abs(np.log(plain / exact)).mean() + 0.01


def test_a_text_without_a_scored_token_has_no_norm_and_others_are_unharmed() -> None:
    module = adapted("llama", Technique.LORA)
    texts = encode(byte_tokenizer(), TextTemplate(max_tokens=32, add_eos=False), ["", "alpha", "b", "gamma"])
    found = gradient_norms(module, texts, (2.0, math.inf))
    assert found.shape == (4, 2)
    assert np.isnan(found[[0, 2]]).all()
    np.testing.assert_allclose(found[[1, 3]], naive_norms(module, [texts[1], texts[3]])[:, 1:], rtol=2e-4)
    assert gradient_norms(module, [], (2.0,)).shape == (0, 1)


@pytest.mark.parametrize("norm", [0.5, math.nan, -1.0])
def test_what_is_no_norm_is_refused(norm: float) -> None:
    with pytest.raises(InvalidValueError, match="at least 1"):
        gradient_norms(adapted("llama", Technique.LORA), encoded("llama"), (norm,))
