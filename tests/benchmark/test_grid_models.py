import pytest
import torch

from reticent.benchmark.tiny_models import tiny_model
from reticent.models.base import resolve_base_model

FAMILIES = ("t5", "llama", "opt", "bloom", "gptj", "gpt2")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_is_a_base_model_of_its_family(tmp_path, family):
    base = resolve_base_model(str(tiny_model(family, tmp_path / family)))
    model, tokenizer = base.load(), base.load_tokenizer()
    assert model.config.model_type == family
    text = "Dear Dr Müller,\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == text
    assert len(tokenizer) <= model.get_input_embeddings().num_embeddings
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    logits = model(input_ids=ids, **decoder).logits
    assert logits.shape == (1, ids.shape[1], model.config.vocab_size)
    assert torch.isfinite(logits).all()


def test_a_tiny_model_is_the_same_each_time_and_made_once(tmp_path):
    first, second = (resolve_base_model(str(tiny_model("llama", tmp_path / name))) for name in "ab")
    assert first.content_hash == second.content_hash
    weights = tmp_path / "a" / "model.safetensors"
    weights.write_bytes(b"changed")
    tiny_model("llama", tmp_path / "a")
    assert weights.read_bytes() == b"changed"


def test_a_half_written_model_is_made_again(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{")
    resolve_base_model(str(tiny_model("opt", tmp_path / "m"))).load()
