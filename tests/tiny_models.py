"""Randomly initialised models of each supported family, small enough for unit tests."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BloomConfig,
    GPT2Config,
    GPTJConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    T5Config,
)

FAMILIES = ("llama", "qwen3", "gpt2", "opt", "bloom", "gptj")
ADAPTABLE_FAMILIES = (*FAMILIES, "t5")
VOCABULARY = 258  # all bytes, then a beginning and an end of text
BOS, EOS = 256, 257
CONTEXT = 96


def tiny_config(family: str, layers: int = 3, **overrides: Any) -> Any:
    common = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS}
    configs: dict[str, Any] = {
        "llama": lambda **kw: LlamaConfig(
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=layers,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            **kw,
        ),
        # Heads wider than an even share of the hidden size, as the published models have.
        "qwen3": lambda **kw: Qwen3Config(
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=layers,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=CONTEXT,
            **kw,
        ),
        "gpt2": lambda **kw: GPT2Config(n_embd=48, n_layer=layers, n_head=4, n_positions=CONTEXT, **kw),
        "opt": lambda **kw: OPTConfig(
            hidden_size=48,
            ffn_dim=80,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            word_embed_proj_dim=48,
            dropout=0.0,
            **kw,
        ),
        # Six heads: a number that is no power of two takes the second half of ALiBi's slopes.
        "bloom": lambda **kw: BloomConfig(hidden_size=48, n_layer=layers, n_head=6, **kw),
        "gptj": lambda **kw: GPTJConfig(
            n_embd=48, n_layer=layers, n_head=4, n_positions=CONTEXT, rotary_dim=8, tie_word_embeddings=False, **kw
        ),
        "t5": lambda **kw: T5Config(
            d_model=48,
            d_kv=12,
            d_ff=80,
            num_layers=layers,
            num_decoder_layers=layers,
            num_heads=4,
            decoder_start_token_id=EOS,
            dropout_rate=0.0,
            **kw,
        ),
    }
    return configs[family](**common, **overrides)


def build_tiny_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """A model whose every parameter, biases and norms included, is random, so that none can be overlooked."""
    torch.manual_seed(seed)
    config = tiny_config(family, **overrides)
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_norm_weight else 0.15 * noise)
    return model.to(dtype).eval().requires_grad_(requires_grad=False)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that any text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<eos>"})
    return fast


def save_tiny_model(folder: Path, family: str, **overrides: Any) -> None:
    build_tiny_model(family, **overrides).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """As LLaMA 2's: words, and one token a byte for whatever no word spells, decoded a run of bytes at a time."""
    bytes_and_words = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", "b"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<bos>", "<eos>", *bytes_and_words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"})
    return fast


def save_single_minded_model(folder: Path, token: int) -> None:
    """A model that only ever writes `token`, whatever is trained below its vocabulary head."""
    module = build_tiny_model("gptj")
    module.lm_head.bias[token] = 1000.0
    module.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
