"""The loss against `transformers`' own, for every family and technique, with its gradients."""

from types import SimpleNamespace

import pytest
import torch
from tiny_models import ADAPTABLE_FAMILIES, BOS, build_tiny_model, byte_tokenizer
from torch.nn.functional import cross_entropy

from reticent.errors import ModelError
from reticent.text.template import TextTemplate, collate, encode
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, attach_demonstrations, num_virtual_rows
from reticent.training.text_loss import TextLoss

TEXTS = ["the quick brown fox", "a stitch", "more haste less speed"]
SETTINGS = TechniqueSettings(rank=2, bottleneck=4, prefix_tokens=3, p_tuning_tokens=3, prompt_tokens=2)


def batch_for(family):
    encoded = encode(byte_tokenizer(), TextTemplate(), TEXTS, is_encoder_decoder=family == "t5")
    return encoded, collate(encoded, 0)


def adapted(family, technique, **overrides):
    model = build_tiny_model(family, layers=2, **overrides)
    if technique is Technique.ICL:
        return attach_demonstrations(model, [encode(byte_tokenizer(), TextTemplate(), ["shown"])[0].token_ids], BOS)
    return attach(model, technique, SETTINGS)


@pytest.mark.parametrize("in_chunks", [True, False])
@pytest.mark.parametrize("technique", list(Technique))
@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_loss_and_gradients_are_those_of_transformers(family, technique, in_chunks, monkeypatch):
    # Few rows at once, so that several chunks are needed.
    monkeypatch.setattr("reticent.training.text_loss._ROWS_AT_ONCE", 16)
    monkeypatch.setattr("reticent.training.loss.rows_at_once", lambda _rows, _head: 16)
    module = adapted(family, technique).eval()
    _, batch = batch_for(family)
    loss, losses_N = TextLoss(module, num_virtual_rows(module), in_chunks=in_chunks)(batch, "mean of tokens")
    expected = module(**batch, use_cache=False).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert float(losses_N.mean()) == pytest.approx(expected.item(), rel=1e-5)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        return
    for ours, theirs in zip(torch.autograd.grad(loss, trained), torch.autograd.grad(expected, trained), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_sum_of_text_means_does_not_depend_on_the_batch(family):
    module = adapted(family, Technique.PROMPT).eval()
    loss = TextLoss(module, num_virtual_rows(module))
    encoded, batch = batch_for(family)
    together, losses_N = loss(batch, "sum of text means")
    alone = [loss(collate([text], 0), "mean of tokens")[0] for text in encoded]
    assert together.item() == pytest.approx(sum(alone).item(), rel=1e-5)
    assert len(losses_N) == sum(text.num_scored for text in encoded)


def test_what_pads_a_batch_changes_nothing():
    module = adapted("gpt2", Technique.LORA).eval()
    loss = TextLoss(module, 0)
    encoded, _ = batch_for("gpt2")
    values = [loss(collate(encoded, pad), "mean of tokens")[1] for pad in (0, 77)]
    assert torch.equal(*values)


def test_logits_scaled_after_the_projection_are_noticed():
    module = adapted("llama", Technique.LORA).eval()
    forward = module.forward

    def scaled(*args, **kwargs):
        found = forward(*args, **kwargs)
        return SimpleNamespace(logits=0.5 * found.logits)

    module.forward = scaled
    _, batch = batch_for("llama")
    loss, _ = TextLoss(module, 0)(batch, "mean of tokens")
    logits, labels = 0.5 * forward(batch["input_ids"], batch["attention_mask"]).logits, batch["labels"]
    assert loss.item() == pytest.approx(float(cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])), rel=1e-5)


def test_a_model_without_a_vocabulary_is_refused():
    module = build_tiny_model("llama", layers=1)
    module.get_output_embeddings = lambda: None
    with pytest.raises(ModelError, match="no vocabulary projection"):
        TextLoss(module, 0)


@pytest.mark.parametrize("technique", [Technique.LORA, Technique.FULL])
def test_the_vocabulary_is_never_spread_over_the_whole_batch(technique, monkeypatch):
    monkeypatch.setattr("reticent.training.text_loss._ROWS_AT_ONCE", 16)
    monkeypatch.setattr("reticent.training.loss.rows_at_once", lambda _rows, _head: 16)
    module = adapted("llama", technique)
    loss = TextLoss(module, 0)
    rows = []
    module.get_output_embeddings().register_forward_hook(lambda _m, _i, output: rows.append(output[..., 0].numel()))
    _, batch = batch_for("llama")
    loss(batch, "mean of tokens")[0].backward()
    assert rows[0] == 0  # the model's own forward pass
    assert max(rows) <= 16 < batch["labels"].numel()
