"""A tiny LLaMA and its byte tokenizer as a GGUF file."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tiny_models import BOS, EOS, VOCABULARY, byte_tokenizer

_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def save_tiny_gguf(path: Path, model: Any, leave_out: str | None = None) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_name("tiny")
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)

    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(byte_tokenizer().convert_ids_to_tokens(range(VOCABULARY)))
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)

    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(config.num_hidden_layers):
        for name, module in _MODULES.items():
            weight = weights[f"model.layers.{layer}.{module}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name)
            if (tensor := f"blk.{layer}.{name}.weight") != leave_out:
                writer.add_tensor(tensor, weight if heads is None else _pairs_adjacent(weight, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _pairs_adjacent(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF rotates neighbouring features; `transformers` rotates a head's first half with its second."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)
