"""Prefix tuning (Li and Liang 2021), by PEFT: trained keys and values before the text, in every block.

Shape suffixes: L blocks, H heads of keys and values, V virtual tokens, E features of a head.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.peft_technique import PeftTechnique, task_type

_CHECKPOINTED = (
    "prefix tuning and gradient checkpointing exclude each other: blocks that are computed twice drop their cache, "
    "and the prefix is in it; turn gradient checkpointing off"
)


class PrefixTuning(PeftTechnique):
    """Keys and values before the text's, which begin as those of random words."""

    peft_type = "PREFIX_TUNING"
    settings_read = ("prefix_tokens",)
    can_train_privately = True
    can_recompute_activations = False

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """A prefix that trains.

        Raises:
            ModelError: blocks keep keys and values of different shapes, or activations are recomputed, which a prefix
                does not survive.
        """
        _refuse_checkpointing(model)
        states = _cached_states(model, settings.prefix_tokens)
        module = self.add(model, _config_of(model, states, settings.prefix_tokens))
        with torch.no_grad():
            module.prompt_encoder["default"].embedding.weight.copy_(_prefix_weight(states))
        return module  # type: ignore[no-any-return]

    def detach(self, module: nn.Module) -> Any:
        """Take the prefix off, with the hook before the base's forward pass."""
        adapted: Any = module
        adapted.prefix_hook.remove()
        return super().detach(module)

    def recompute_activations(self, module: nn.Module) -> None:
        """Refuse: the prefix would be lost."""
        raise ModelError(_CHECKPOINTED)

    def wrap(self, model: Any, config: Any) -> Any:
        """A PEFT model that refuses passes which would drop its prefix."""
        module = super().wrap(model, config)
        module.prefix_hook = _guard_prefix(module, model)
        return module

    def misfit(self, model: Any, config: Any) -> str | None:
        """Compare layers, heads and width with the base's cache."""
        states = _cached_states(model, 1)
        _, num_heads, _, head_size = states[0][0].shape
        needed = len(states), num_heads, num_heads * head_size
        found = config.num_layers, config.num_attention_heads, config.token_dim
        return None if found == needed else f"its prefix has layers, heads and width {found}, {needed} are needed"


def _config_of(model: Any, keys_and_values: Sequence[tuple[Tensor, Tensor]], num_tokens: int) -> Any:
    from peft import PrefixTuningConfig

    _, num_heads, _, head_size = keys_and_values[0][0].shape
    return PrefixTuningConfig(
        task_type=task_type(model),
        num_virtual_tokens=num_tokens,
        num_layers=len(keys_and_values),
        num_attention_heads=num_heads,
        token_dim=num_heads * head_size,
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


def _guard_prefix(module: Any, base: Any) -> torch.utils.hooks.RemovableHandle:
    """Refuse passes that would drop a prefix unseen, and name the cache as the base does."""
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
                raise ModelError(_CHECKPOINTED)
            return
