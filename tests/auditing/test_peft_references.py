"""Adapters of every kind that PEFT writes: the target is what PEFT computes, and the reference is its base, loaded."""

import json

import numpy as np
import pytest
import torch
from fake_targets import random_texts
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import byte_tokenizer, save_tiny_model
from transformers import AutoModelForCausalLM

from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.targets.targets import TargetOptions, open_module, open_target
from reticent.errors import ModelError

TEXTS = random_texts(3, seed=1, words=6)
OPTIONS = TargetOptions(template={"max_tokens": 48})

BESIDE = {
    "trained biases": ("opt", {"bias": "all"}),
    "biases of the adapted modules": ("opt", {"bias": "lora_only"}),
    "pissa": ("llama", {"init_lora_weights": "pissa"}),
    "olora": ("llama", {"init_lora_weights": "olora"}),
    "replicated layers": ("llama", {"layer_replication": [[0, 2], [1, 2]]}),
}
OFF = {
    "plain": ("llama", {}),
    "dora": ("llama", {"use_dora": True}),
    "token rows": ("llama", {"trainable_token_indices": [1, 97, 100]}),
    "tied token rows": ("llama", {"trainable_token_indices": [1, 97], "ensure_weight_tying": True}),
    "whole embeddings, tied": ("llama", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "adapted embeddings": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "adapted embeddings, tied": ("llama", {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}),
    "adapted head": ("llama", {"target_modules": ["q_proj", "lm_head"]}),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    for family in ("llama", "opt"):
        save_tiny_model(folder / family, family, layers=2)
    return folder


def adapter(base, folder, **settings):
    """A PEFT folder whose every trained number is moved at random, and its base's folder."""
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, **{"target_modules": ["q_proj"], **settings})
    module = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    module.save_pretrained(folder)
    return folder


@torch.no_grad()
def log_probabilities(model, scorer):
    """By `transformers` and PEFT alone, text by text."""
    found = []
    for text in scorer.encode(TEXTS):
        ids = torch.from_numpy(text.token_ids)[None]
        logits = model.eval()(input_ids=ids).logits.log_softmax(-1)
        found.append(logits[0, :-1].gather(1, ids[0, 1:, None])[:, 0].numpy())
    return np.concatenate(found)


def scored(scorer):
    return np.concatenate([signals.logp for signals in scorer.score(TEXTS)])


@pytest.mark.parametrize("kind", [*BESIDE, *OFF])
def test_the_target_is_what_peft_computes_and_the_reference_its_base(bases, tmp_path, kind):
    family, settings = (BESIDE | OFF)[kind]
    folder = adapter(bases / family, tmp_path / "adapter", **settings)
    target = open_target(str(folder), OPTIONS)
    base = AutoModelForCausalLM.from_pretrained(bases / family)
    expected = log_probabilities(base, target.scorer)
    np.testing.assert_allclose(scored(target.reference), expected, atol=1e-4)
    adapted = log_probabilities(PeftModel.from_pretrained(base, folder), target.scorer)
    np.testing.assert_allclose(scored(target.scorer), adapted, atol=1e-4)
    assert np.abs(adapted - expected).max() > 0.01
    assert ("loaded" in target.reference_record) == (kind in BESIDE)


def test_a_shared_cache_holds_what_the_base_says_whichever_adapter_came_first(bases, tmp_path):
    cache = SignalCache(tmp_path / "cache")
    for name, settings in (("biased", {"bias": "all"}), ("plain", {})):
        target = open_target(str(adapter(bases / "opt", tmp_path / name, **settings)), OPTIONS)
        table = cached_signals(target.reference, TEXTS, cache)
        found = np.concatenate([signals.logp for signals in table.signals])
        expected = log_probabilities(AutoModelForCausalLM.from_pretrained(bases / "opt"), target.scorer)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_adapter_that_brings_other_embeddings_is_refused_for_that_reason(bases, tmp_path):
    folder = adapter(bases / "llama", tmp_path / "adapter", target_modules=["q_proj", "embed_tokens"])
    weights = load_file(folder / "adapter_model.safetensors")
    (name,) = [name for name in weights if name.endswith("embed_tokens.base_layer.weight")]
    weights[name][5, 5] += 1.0
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="differs from the base's"):
        open_target(str(folder), OPTIONS)


def test_a_model_in_memory_that_left_its_base_has_no_reference_and_says_so(bases, tmp_path):
    folder = adapter(bases / "opt", tmp_path / "adapter", bias="all")
    assert json.loads((folder / "adapter_config.json").read_text())["bias"] == "all"
    module = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(bases / "opt"), folder)
    target = open_module(module, byte_tokenizer(), OPTIONS)
    assert target.reference is None
    assert any("its adapter off" in warning and "reference" in warning for warning in target.warnings)
