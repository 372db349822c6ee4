"""Tiny random models of each family, so that a whole grid can be tried without weights from anywhere.

They know nothing: an attack on one that was adapted for a step or two is near chance. They are there so that every
family, technique and attack runs from end to end in seconds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reticent.benchmark.settings import Family
from reticent.errors import StorageError

_CONTEXT = 256
_HIDDEN, _LAYERS, _HEADS = 32, 2, 4
_BOS, _EOS, _VOCABULARY = 256, 257, 258
_SEED = 20_240_101


def tiny_model(family: Family, folder: Path) -> Path:
    """A folder with a tiny random model and a tokenizer of bytes, made unless it is there already.

    Raises:
        StorageError: it cannot be written.
    """
    if (folder / "tokenizer.json").is_file():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = _CONFIGURATIONS[family]()
    make: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = make.from_config(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        # The tokenizer is written last: a folder that has it is whole.
        _byte_tokenizer().save_pretrained(folder)
    except OSError as error:
        raise StorageError(f"cannot write a tiny model to {folder}: {error.strerror or error}") from None
    return folder


def _byte_tokenizer() -> Any:
    """One token a byte, and a beginning and an end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytewise, model_max_length=_CONTEXT)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _special() -> dict[str, int]:
    return {"vocab_size": _VOCABULARY, "bos_token_id": _BOS, "eos_token_id": _EOS, "pad_token_id": _EOS}


def _t5() -> Any:
    from transformers import T5Config

    sizes = {"d_model": _HIDDEN, "d_kv": _HIDDEN // _HEADS, "d_ff": 2 * _HIDDEN, "num_heads": _HEADS}
    return T5Config(num_layers=_LAYERS, decoder_start_token_id=_EOS, dropout_rate=0.0, **sizes, **_special())


def _llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS // 2,
        max_position_embeddings=_CONTEXT,
        **_special(),
    )


def _opt() -> Any:
    from transformers import OPTConfig

    return OPTConfig(
        hidden_size=_HIDDEN,
        word_embed_proj_dim=_HIDDEN,
        ffn_dim=2 * _HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        max_position_embeddings=_CONTEXT,
        dropout=0.0,
        **_special(),
    )


def _bloom() -> Any:
    from transformers import BloomConfig

    return BloomConfig(hidden_size=_HIDDEN, n_layer=_LAYERS, n_head=_HEADS, **_special())


def _gptj() -> Any:
    from transformers import GPTJConfig

    return GPTJConfig(
        n_embd=_HIDDEN,
        n_layer=_LAYERS,
        n_head=_HEADS,
        n_positions=_CONTEXT,
        rotary_dim=_HIDDEN // _HEADS,
        tie_word_embeddings=False,
        **_special(),
    )


def _gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(n_embd=_HIDDEN, n_layer=_LAYERS, n_head=_HEADS, n_positions=_CONTEXT, **_special())


_CONFIGURATIONS: dict[Family, Callable[[], Any]] = {
    "t5": _t5,
    "llama": _llama,
    "opt": _opt,
    "bloom": _bloom,
    "gptj": _gptj,
    "gpt2": _gpt2,
}
