"""What is read as an architecture and what is refused, without ever asking for a model's name."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import BOS, CONTEXT, EOS, FAMILIES, VOCABULARY, build_tiny_model

from reticent.errors import ModelError
from reticent.layers.forward import batched_decoder
from reticent.models.families import ADAPTABLE_FAMILIES, SUPPORTED_FAMILIES, read_architecture

IDS = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS}
LLAMA_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}


DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("document", "families"), [("architecture.md", SUPPORTED_FAMILIES), ("adapt.md", ADAPTABLE_FAMILIES)]
)
def test_documents_name_every_family(document: str, families: tuple[str, ...]) -> None:
    text = (DOCUMENTS / document).read_text("utf-8")
    assert [family for family in families if family.partition(" (")[0] not in text] == []


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def assert_refused(model: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        batched_decoder(model)
    for family in SUPPORTED_FAMILIES:
        assert family in str(caught.value)
    assert type(model).__name__ in str(caught.value)


REFUSED = {
    "gemma": lambda: transformers.GemmaConfig(**IDS, **LLAMA_SHAPE, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**IDS, **LLAMA_SHAPE, head_dim=8),
    "olmo2": lambda: transformers.Olmo2Config(**IDS, **LLAMA_SHAPE),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(
        **IDS, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6
    ),
    "falcon": lambda: transformers.FalconConfig(**IDS, hidden_size=48, num_hidden_layers=2, num_attention_heads=6),
    "mpt": lambda: transformers.MptConfig(**IDS, d_model=48, n_layers=2, n_heads=4, max_seq_len=CONTEXT),
    "mixtral": lambda: transformers.MixtralConfig(**IDS, **LLAMA_SHAPE, num_local_experts=2),
    "phi": lambda: transformers.PhiConfig(
        **IDS, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6
    ),
    "granite": lambda: transformers.GraniteConfig(**IDS, **LLAMA_SHAPE, residual_multiplier=0.5),
    "codegen": lambda: transformers.CodeGenConfig(**IDS, n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "mamba": lambda: transformers.MambaConfig(**IDS, hidden_size=48, num_hidden_layers=2, state_size=4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_architectures_are_refused_with_the_list_of_those_that_work(name: str) -> None:
    assert_refused(random_model(REFUSED[name]()), "cannot be evaluated as a batch of worlds")


def test_opt_variants_of_another_structure_are_refused() -> None:
    assert_refused(build_tiny_model("opt", do_layer_norm_before=False), "after each sub-layer")
    narrow = transformers.OPTConfig(
        **IDS, hidden_size=48, word_embed_proj_dim=24, ffn_dim=80, num_hidden_layers=2, num_attention_heads=4
    )
    assert_refused(random_model(narrow), r"parameters of no known role: .*project_(in|out)")


def test_a_rotary_embedding_that_changes_with_the_text_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert_refused(build_tiny_model("llama", rope_parameters=rope), "changes with the length")


def test_an_encoder_is_refused() -> None:
    config = transformers.BertConfig(
        **IDS, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, is_decoder=True
    )
    assert_refused(random_model(config), "cannot be evaluated as a batch of worlds")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_that_looks_familiar_but_computes_something_else_is_refused(family: str) -> None:
    model = build_tiny_model(family)
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    # Past all structure: the second block's output comes out scaled, which no parameter or attribute shows.
    blocks[1].register_forward_hook(
        lambda _module, _inputs, output: output * 1.1 if torch.is_tensor(output) else (output[0] * 1.1, *output[1:])
    )
    assert_refused(model, r"compute something else \(logits differ by")


def test_a_changed_activation_is_found_by_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_tiny_model("gptj")
    monkeypatch.setattr(type(model.transformer.h[0].mlp), "forward", lambda self, x: self.fc_out(self.fc_in(x).relu()))
    assert_refused(model, r"compute something else \(logits differ by")


def test_a_model_that_yields_no_numbers_is_refused() -> None:
    model = build_tiny_model("llama")
    model.model.norm.weight[3] = torch.nan
    assert_refused(model, "logits differ by nan")


@pytest.mark.parametrize("window", [None, 16, 4 * CONTEXT])
def test_mistral_is_read_up_to_its_sliding_window(window: int | None) -> None:
    model = random_model(transformers.MistralConfig(**IDS, **LLAMA_SHAPE, sliding_window=window))
    decoder = batched_decoder(model)
    length = min(window or CONTEXT, CONTEXT)
    assert decoder.architecture.context_length == length
    # A whole window attends to everything, as a batched row does.
    tokens = torch.arange(length) * 37 % VOCABULARY
    positions = torch.arange(length)
    hidden = decoder.embed(tokens, positions)[None]
    hidden = decoder.run_layers(hidden, range(decoder.num_layers), positions, decoder.attention_over)
    expected = model(input_ids=tokens[None], use_cache=False).logits[0]
    torch.testing.assert_close(decoder.logits(decoder.final_hidden(hidden))[0], expected, rtol=1e-4, atol=1e-4)


def test_qwen2_with_its_biases_is_read() -> None:
    # Its window is off unless asked for, and then does not bound the context.
    model = random_model(transformers.Qwen2Config(**IDS, **LLAMA_SHAPE, sliding_window=16, use_sliding_window=False))
    architecture = batched_decoder(model).architecture
    assert architecture.context_length == CONTEXT
    assert architecture.layers[0].qkv.bias_O is not None
    assert architecture.num_kv_heads == 2


def test_qwen3s_norms_of_queries_and_keys_are_read_for_each_head() -> None:
    model = build_tiny_model("qwen3")
    layer = batched_decoder(model).architecture.layers[1]
    attention = model.model.layers[1].self_attn
    assert layer.query_norm is not None
    assert layer.key_norm is not None
    for norm, module in ((layer.query_norm, attention.q_norm), (layer.key_norm, attention.k_norm)):
        x = torch.randn(3, 5, 4, 16, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(norm(x), module(x))
    with torch.no_grad():
        attention.q_norm.weight = torch.nn.Parameter(torch.ones(96))
    assert_refused(model, "q_norm normalises all heads as one, not each of 16 features")


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_tells_sizes_as_the_configuration_does(family: str) -> None:
    model = build_tiny_model(family)
    architecture = read_architecture(model)
    assert architecture.class_name == type(model).__name__
    assert architecture.hidden_size == model.config.hidden_size
    assert architecture.vocab_size == VOCABULARY
    assert len(architecture.layers) == model.config.num_hidden_layers
    assert architecture.context_length == (2048 if family == "bloom" else CONTEXT)
    assert architecture.dtype == torch.float32
