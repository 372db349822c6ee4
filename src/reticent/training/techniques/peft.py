"""The techniques that PEFT has, placed by structure: LoRA, (IA)^3, prefix tuning, P-tuning and prompt tuning.

Adapters are kept in float32 whatever the base is. What an adapted model stores are the folders that PEFT itself reads;
what is read must hold exactly the weights that its settings ask for, since PEFT alone only warns when it finds none.

Shape suffixes: L blocks, H heads of keys and values, V virtual tokens, E features of a head.
"""

import inspect
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from reticent._files import atomic_write
from reticent.errors import ModelError
from reticent.models.sublayers import find_blocks, select_paths
from reticent.training.checkpoint import save_tensors
from reticent.training.settings import Technique, TechniqueSettings

PEFT_TECHNIQUES = frozenset(
    (Technique.LORA, Technique.PREFIX, Technique.P_TUNING, Technique.PROMPT, Technique.IA3),
)
CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
CHECKPOINTED_PREFIX = (
    "prefix tuning and gradient checkpointing exclude each other: blocks that are computed twice drop their cache, "
    "and the prefix is in it; turn gradient checkpointing off"
)


def attach_peft(model: Any, technique: Technique, settings: TechniqueSettings) -> Any:
    """A PEFT model around `model`, with new adapters that train.

    Raises:
        ModelError: the base has parts that are not understood, or recomputes activations, which a prefix does not
            survive.
        InvalidValueError: LoRA's target modules name nothing in the base.
    """
    if technique is Technique.PREFIX:
        _refuse_checkpointing(model)
    keys_and_values = _cached_states(model, settings.prefix_tokens) if technique is Technique.PREFIX else None
    module = _wrap_model(model, _config(model, technique, settings, keys_and_values))
    if keys_and_values is not None:
        with torch.no_grad():
            module.prompt_encoder["default"].embedding.weight.copy_(_prefix_weight(keys_and_values))
    return module


def load_peft(model: Any, folder: Path) -> Any:
    """A PEFT model around `model`, with the adapters that a PEFT folder holds, frozen.

    Raises:
        ModelError: the folder cannot be read, or does not hold the weights that its settings ask for on this base.
    """
    from peft import PeftConfig, get_peft_model_state_dict, set_peft_model_state_dict

    try:
        tensors = safetensors.torch.load_file(folder / WEIGHTS_NAME)
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"{folder} is not a PEFT folder with {CONFIG_NAME} and {WEIGHTS_NAME}: {error}") from None
    config.inference_mode = True
    misfit = _misfit(model, config)
    if misfit:
        raise ModelError(f"{folder} does not fit this base model: {misfit}")
    try:
        module = _wrap_model(model, config)
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder} does not fit this base model: {error}") from None
    wanted = get_peft_model_state_dict(module, save_embedding_layers=False)
    problem = _difference(wanted, tensors)
    if problem:
        detach_peft(module)
        raise ModelError(f"{folder} does not fit this base model: {problem}")
    set_peft_model_state_dict(module, tensors)
    return module.requires_grad_(requires_grad=False)


def save_peft(module: Any, folder: Path) -> None:
    """Write a folder that PEFT reads: its settings and the adapters' weights, nothing else.

    Raises:
        StorageError: a file cannot be written.
    """
    from peft import get_peft_model_state_dict

    config = module.peft_config["default"]
    content = {**config.to_dict(), "inference_mode": True}
    content = {key: sorted(value) if isinstance(value, set) else value for key, value in content.items()}
    text = json.dumps(content, indent=2, sort_keys=True, default=str)
    atomic_write(folder / CONFIG_NAME, lambda path: _write_text(path, text))
    tensors = get_peft_model_state_dict(module, save_embedding_layers=False)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_tensors(folder / WEIGHTS_NAME, contiguous, {"format": "pt"})


def detach_peft(module: Any) -> Any:
    """Take the adapters off and return the base, its weights and modules as they were."""
    from peft import PeftModel

    assert isinstance(module, PeftModel)
    if module.active_peft_config.is_prompt_learning:
        if hasattr(module, "prefix_hook"):
            module.prefix_hook.remove()
        return module.base_model
    base = module.unload()
    # PEFT leaves its settings on the base, and warns of them when it is adapted again.
    if hasattr(base, "peft_config"):
        del base.peft_config
    return base


def num_prompt_rows(module: Any) -> int:
    """Leading rows of a PEFT model's logits that belong to virtual tokens."""
    config = module.active_peft_config
    is_prompt = config.peft_type in ("PROMPT_TUNING", "P_TUNING") and not module.config.is_encoder_decoder
    return int(config.num_virtual_tokens) if is_prompt else 0


def peft_parameters(module: Any) -> list[nn.Parameter]:
    """The adapters' parameters that a forward pass reads, whether or not they train now."""
    config = module.active_peft_config
    if not config.is_prompt_learning:
        return [p for name, p in module.named_parameters() if ".default" in name and _is_adapter(name)]
    encoder = module.prompt_encoder["default"]
    # Once stored, virtual tokens are read from one table; P-tuning's network made them and is gone.
    return [encoder.embedding.weight] if config.inference_mode else list(encoder.parameters())


def _is_adapter(name: str) -> bool:
    return any(part in name for part in (".lora_", ".ia3_"))


def _config(
    model: Any,
    technique: Technique,
    settings: TechniqueSettings,
    keys_and_values: Sequence[tuple[Tensor, Tensor]] | None,
) -> Any:
    from peft import IA3Config, LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, TaskType

    task = TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM
    if technique in (Technique.LORA, Technique.IA3):
        blocks = find_blocks(model)
        stored_transposed = not isinstance(model.get_submodule(blocks[0].feed_forward.output), nn.Linear)
        if technique is Technique.LORA:
            return LoraConfig(
                task_type=task,
                r=settings.rank,
                lora_alpha=settings.alpha,
                lora_dropout=settings.dropout,
                target_modules=select_paths(blocks, settings.target_modules),
                fan_in_fan_out=stored_transposed,
            )
        feed_forward = [block.feed_forward.output for block in blocks]
        key_value = [path for block in blocks for part in block.attention for path in part.key_value]
        return IA3Config(
            task_type=task,
            target_modules=key_value + feed_forward,
            feedforward_modules=feed_forward,
            fan_in_fan_out=stored_transposed,
        )
    if technique is Technique.PREFIX:
        assert keys_and_values is not None
        _, num_heads, _, head_size = keys_and_values[0][0].shape
        return PrefixTuningConfig(
            task_type=task,
            num_virtual_tokens=settings.prefix_tokens,
            num_layers=len(keys_and_values),
            num_attention_heads=num_heads,
            token_dim=num_heads * head_size,
        )
    # An embedding's width; OPT-350m's hidden states are wider than its embeddings. Heads are not used.
    width = model.get_input_embeddings().weight.shape[1]
    shape = {"token_dim": width, "num_attention_heads": 1, "num_layers": 1, "num_transformer_submodules": 1}
    if technique is Technique.PROMPT:
        return PromptTuningConfig(
            task_type=task, num_virtual_tokens=settings.prompt_tokens, prompt_tuning_init="SAMPLE_VOCAB", **shape
        )
    return PromptEncoderConfig(
        task_type=task, num_virtual_tokens=settings.p_tuning_tokens, encoder_hidden_size=width, **shape
    )


@torch.no_grad()
def _cached_states(model: Any, num_tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, H, V, E] that the decoder's self-attention makes of random words, for every block.

    They say what shape a prefix has, and start it: from the activations of real words a prefix trains, from noise it
    hardly does (Li and Liang 2021, on initialisation).
    """
    table = model.get_input_embeddings().weight
    ids = torch.randint(table.shape[0], (1, num_tokens)).to(table.device)
    encoder_decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    was_training = model.training
    try:
        cache = model.eval()(input_ids=ids, use_cache=True, **encoder_decoder).cache
    finally:
        model.train(was_training)
    layers = getattr(cache, "self_attention_cache", cache).layers
    states = [(layer.keys, layer.values) for layer in layers]
    if len({keys.shape for keys, _ in states}) != 1 or any(k.shape != v.shape for k, v in states):
        raise ModelError(
            f"{type(model).__name__} cannot be given a prefix: its blocks keep keys and values of different shapes"
        )
    return states


def _prefix_weight(keys_and_values: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Arrange keys and values as PEFT keeps them, float32[V, L · 2 · H · E]."""
    states = torch.stack([state[0] for pair in keys_and_values for state in pair])  # [L · 2, H, V, E]
    return states.permute(2, 0, 1, 3).flatten(1).float()


def _wrap_model(model: Any, config: Any) -> Any:
    """A PEFT model around `model`, without what PEFT changes in the base or guesses of it."""
    from peft import get_peft_model

    tensor_parallel = getattr(model.config, "pretraining_tp", None)
    with _quiet_peft():
        module = get_peft_model(model, config)
    if tensor_parallel is not None:
        model.config.pretraining_tp = tensor_parallel
    if not config.is_prompt_learning:
        return module
    # PEFT takes the first matrix with as many rows as the vocabulary for the embeddings.
    module.word_embeddings = model.get_input_embeddings()
    if config.peft_type == "PREFIX_TUNING":
        module.prefix_hook = _guard_prefix(module, model)
    return module


def _guard_prefix(module: Any, base: Any) -> torch.utils.hooks.RemovableHandle:
    """Keep a prefix from being dropped unseen, and from being complained of."""
    # `transformers` calls a cache `cache`; PEFT passes it by the name that it had before.
    takes_cache = "cache" in inspect.signature(base.forward).parameters

    def before(_base: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if takes_cache and "past_key_values" in kwargs:
            kwargs["cache"] = kwargs.pop("past_key_values")
        if module.training and module.has_active_enabled_adapter:
            _refuse_checkpointing(base)
        return args, kwargs

    handle: torch.utils.hooks.RemovableHandle = base.register_forward_pre_hook(before, with_kwargs=True)
    return handle


def _refuse_checkpointing(model: Any) -> None:
    # The second is the older name of the first.
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        if hasattr(type(model), name):
            if getattr(model, name):
                raise ModelError(CHECKPOINTED_PREFIX)
            return


def _misfit(model: Any, config: Any) -> str | None:
    """Find why virtual tokens or a prefix, whose shapes only their settings state, cannot be the base's; or None."""
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM"
    if config.task_type != task:
        return f"it is for {config.task_type} models, this one is for {task}"
    if not config.is_prompt_learning:
        return None
    if config.peft_type == "PREFIX_TUNING":
        states = _cached_states(model, 1)
        _, num_heads, _, head_size = states[0][0].shape
        needed = len(states), num_heads, num_heads * head_size
        found = config.num_layers, config.num_attention_heads, config.token_dim
        return None if found == needed else f"its prefix has layers, heads and width {found}, {needed} are needed"
    width = model.get_input_embeddings().weight.shape[1]
    return None if config.token_dim == width else f"its tokens have {config.token_dim} features, {width} are needed"


def _difference(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> str | None:
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (wanted, found)]
    different = sorted(name for name in wanted.keys() | found.keys() if shapes[0].get(name) != shapes[1].get(name))
    if not different:
        return None
    needed, stored = (shape.get(different[0]) for shape in shapes)
    return f"{len(different)} weights differ, {different[0]} among them (needed {needed}, stored {stored})"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Silence PEFT's advice while it wraps a model; what matters of it is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
