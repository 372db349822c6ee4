"""Ten ways to adapt a language model, behind one set of functions: attach, score with, save, load, detach.

An adapted module is called like the `transformers` model it is made from, and its logits end with one row for each
token it was given (`num_virtual_rows` says how many rows come before). Only the technique's own parameters train.

    full        every parameter of the model
    lora        LoRA (arXiv 2106.09685), by PEFT
    adapter-h   bottleneck after self-attention and after the feed-forward part (Houlsby et al. 2019)
    adapter-p   bottleneck after the feed-forward part (Pfeiffer et al. 2021)
    parallel    bottleneck beside the feed-forward part (He et al. 2022)
    prefix      trained keys and values before the text (Li and Liang 2021), by PEFT
    p-tuning    virtual tokens made by a small network (arXiv 2103.10385), by PEFT
    prompt      virtual tokens (Lester et al. 2021), by PEFT
    ia3         rescaled keys, values and feed-forward activations (arXiv 2205.05638), by PEFT; where a model computes
                query, key and value in one projection, the query is rescaled with them
    icl         demonstrations before the text, no training
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent.errors import InvalidValueError, ModelError
from reticent.models.base import LanguageModel, quiet_transformers
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.bottleneck import BottleneckModel, Placement, load_bottleneck, save_bottleneck
from reticent.training.techniques.in_context import (
    InContextModel,
    load_demonstrations,
    save_demonstrations,
    without_begin,
)
from reticent.training.techniques.peft import (
    CHECKPOINTED_PREFIX,
    PEFT_TECHNIQUES,
    attach_peft,
    detach_peft,
    load_peft,
    num_prompt_rows,
    peft_parameters,
    save_peft,
)

__all__ = [
    "Technique",
    "TechniqueSettings",
    "attach",
    "attach_demonstrations",
    "base_class_name",
    "detach",
    "disabled",
    "enable_gradient_checkpointing",
    "load_technique",
    "num_trainable",
    "num_virtual_rows",
    "parse_technique",
    "positions_taken",
    "save_technique",
    "technique_parameters",
]


def parse_technique(name: str) -> Technique:
    """The technique of that name.

    Raises:
        InvalidValueError: there is none; the message lists the names.
    """
    try:
        return Technique(name)
    except ValueError:
        raise InvalidValueError(f"technique {name!r} is none of {', '.join(Technique)}") from None


def attach(model: Any, technique: Technique, settings: TechniqueSettings, *, seed: int = 0) -> nn.Module:
    """Adapt a base model: its parameters are frozen, the technique's are new and train.

    Full fine-tuning returns the model itself, all of it training. The model stays in the mode, training or evaluation,
    that it is in. Adapters are float32 whatever the base is. The global random state is left as it was.

    Args:
        model: a `transformers` causal or encoder-decoder model, changed in place until `detach`.
        technique: which; in-context learning has no parameters and is `attach_demonstrations`.
        settings: the sizes.
        seed: of the adapters' first weights.

    Raises:
        ModelError: the model is adapted already, or has parts that are not understood.
        InvalidValueError: the settings name modules that the model does not have, or the technique trains nothing.
    """
    _refuse_adapted(model)
    if technique is Technique.ICL:
        raise InvalidValueError("in-context learning attaches demonstrations, not parameters")
    if technique is Technique.FULL:
        return _as_module(model.requires_grad_(requires_grad=True))
    with _seeded_random_state(model, seed):
        if technique in PEFT_TECHNIQUES:
            return _as_module(attach_peft(model.requires_grad_(requires_grad=False), technique, settings))
        return BottleneckModel(
            model,
            Placement(technique.value),
            width=settings.bottleneck,
            scale=settings.parallel_scale,
            dropout=settings.dropout,
        )


def attach_demonstrations(model: Any, demonstrations: Sequence[NDArray[np.int64]], begin_id: int | None) -> nn.Module:
    """Adapt a base model by demonstrations, which it reads before every text; see `in_context.InContextModel`.

    Args:
        model: a `transformers` causal or encoder-decoder model, changed in place until `detach`.
        demonstrations: token ids of each, as `template.encode` gives them: beginning-of-text token, text, end.
        begin_id: the tokenizer's beginning-of-text token. Where every demonstration begins with it, so does every text
            of that tokenizer, and it then stands once, before them all.

    Raises:
        ModelError: the model is adapted already.
        InvalidValueError: there is no demonstration.
    """
    _refuse_adapted(model)
    bare = without_begin(demonstrations, begin_id)
    return InContextModel(model, demonstrations if bare is None else bare, texts_begin=bare is not None)


def detach(module: nn.Module) -> Any:
    """Take a technique off and return the base, which then computes what it did before, bit for bit.

    Raises:
        InvalidValueError: full fine-tuning changed the base itself, so only loading it again restores it.
    """
    if isinstance(module, BottleneckModel):
        return module.remove()
    if isinstance(module, InContextModel):
        return module.base
    if _is_peft(module):
        return detach_peft(module)
    raise InvalidValueError("full fine-tuning cannot be taken off a model: load the base again")


@contextmanager
def disabled(module: nn.Module) -> Iterator[nn.Module]:
    """Within this context the module computes what its base does, and its logits have no virtual rows.

    Raises:
        InvalidValueError: the module is a full fine-tuning, which has no base beneath it.
    """
    if isinstance(module, BottleneckModel | InContextModel):
        with module.disabled():
            yield module
    elif _is_peft(module):
        peft: Any = module
        with peft.disable_adapter():
            yield module
    else:
        raise InvalidValueError("full fine-tuning cannot be switched off: load the base model beside it")


def num_virtual_rows(module: nn.Module) -> int:
    """Count the leading rows of the logits that belong to no token of the text: virtual tokens or demonstrations."""
    if isinstance(module, InContextModel):
        return 0 if module.base.config.is_encoder_decoder else module.num_tokens
    return num_prompt_rows(module) if _is_peft(module) else 0


def positions_taken(module: nn.Module) -> int:
    """Count the positions of the context that a technique takes from the text (for T5, from the encoder's input)."""
    if isinstance(module, InContextModel):
        return module.num_tokens
    config: Any = module.active_peft_config if _is_peft(module) else None
    return int(config.num_virtual_tokens) if config is not None and config.is_prompt_learning else 0


def technique_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that a technique adds and its forward reads, frozen or not; all of them for full fine-tuning."""
    if isinstance(module, BottleneckModel):
        return list(module.adapters.parameters())
    if isinstance(module, InContextModel):
        return []
    return peft_parameters(module) if _is_peft(module) else list(module.parameters())


def num_trainable(module: nn.Module) -> int:
    """Count the numbers that train now."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def enable_gradient_checkpointing(module: nn.Module) -> None:
    """Compute activations again in the backward pass rather than keep them.

    Raises:
        ModelError: prefix tuning, which loses its prefix that way.
    """
    config: Any = module.active_peft_config if _is_peft(module) else None
    if config is not None and config.peft_type == "PREFIX_TUNING":
        raise ModelError(CHECKPOINTED_PREFIX)
    base: Any = module
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


def save_technique(module: nn.Module, technique: Technique, settings: TechniqueSettings, folder: Path) -> None:
    """Write what a technique trained into a folder that exists.

    A whole model for full fine-tuning, a folder that PEFT reads, `bottleneck.safetensors`, or `demonstrations.npz`.

    Raises:
        StorageError: a file cannot be written.
    """
    if technique is Technique.FULL:
        whole: Any = module
        with quiet_transformers():
            whole.save_pretrained(folder)
    elif isinstance(module, InContextModel):
        save_demonstrations(module, folder)
    elif isinstance(module, BottleneckModel):
        save_bottleneck(module, folder)
    else:
        save_peft(module, folder)


def load_technique(base_model: Any, technique: Technique, settings: TechniqueSettings, folder: Path) -> nn.Module:
    """Put what `save_technique` wrote on a base model; everything frozen, in evaluation mode.

    Args:
        base_model: the base, changed in place until `detach`. A full fine-tuning is a model beside it, of its type.
        technique: what the folder holds.
        settings: the sizes it was made with.
        folder: what `save_technique` wrote.

    Raises:
        ModelError: the folder is missing or damaged, or does not fit the base.
    """
    _refuse_adapted(base_model)
    if technique is Technique.ICL:
        module: Any = load_demonstrations(base_model, folder)
    elif technique in PEFT_TECHNIQUES:
        module = load_peft(base_model, folder)
    elif technique is Technique.FULL:
        module = LanguageModel(folder.name, folder).load(base_model.dtype).to(base_model.device)
    else:
        module = load_bottleneck(base_model, folder)
        found, needed = (module.placement, module.width), (technique, settings.bottleneck)
        if found != needed:
            module.remove()
            raise ModelError(f"{folder} holds {found[0]} of width {found[1]}, not {needed[0]} of width {needed[1]}")
    return _as_module(module.eval().requires_grad_(requires_grad=False))


def base_class_name(module: nn.Module) -> str:
    """The class of the `transformers` model that a module was made from."""
    base: Any = module
    if isinstance(module, BottleneckModel | InContextModel):
        base = module.base
    elif _is_peft(module):
        base = base.get_base_model()
    return type(base).__name__


def _refuse_adapted(model: Any) -> None:
    if isinstance(model, BottleneckModel | InContextModel) or _is_peft(model):
        raise ModelError("this model is adapted already; take that technique off before another is put on")


def _is_peft(module: nn.Module) -> bool:
    from peft import PeftModel

    return isinstance(module, PeftModel)


def _as_module(module: Any) -> nn.Module:
    assert isinstance(module, nn.Module)
    return module


@contextmanager
def _seeded_random_state(model: Any, seed: int) -> Iterator[None]:
    """Fix the random state within, for PEFT draws from the global one, and put it back."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
