"""The closed registry of techniques, and their interface applied to whichever technique a module has.

An adapted module is called like the `transformers` model it is made from, and its logits end with one row for each
token it was given (`num_virtual_rows` counts the rows before). Only the technique's own parameters train.

    full        every parameter of the model
    lora        LoRA (arXiv 2106.09685), by PEFT
    adapter-h   bottleneck after self-attention and after the feed-forward part (Houlsby et al. 2019)
    adapter-p   bottleneck after the feed-forward part (Pfeiffer et al. 2021)
    parallel    bottleneck beside the feed-forward part (He et al. 2022)
    prefix      trained keys and values before the text (Li and Liang 2021), by PEFT
    p-tuning    virtual tokens made by a small network (arXiv 2103.10385), by PEFT
    prompt      virtual tokens (Lester et al. 2021), by PEFT
    ia3         rescaled keys, values and feed-forward activations (arXiv 2205.05638), by PEFT
    icl         demonstrations before the text, no training
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent.errors import InvalidValueError, ModelError
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.bottleneck import Placement
from reticent.training.techniques.bottleneck_technique import BottleneckTechnique
from reticent.training.techniques.full import FullFineTuning
from reticent.training.techniques.ia3 import Ia3
from reticent.training.techniques.in_context import InContextLearning, InContextModel, strip_begin_token
from reticent.training.techniques.interface import AdaptationTechnique
from reticent.training.techniques.lora import Lora
from reticent.training.techniques.p_tuning import PTuning
from reticent.training.techniques.peft_technique import OtherPeft, PeftTechnique, read_peft_folder
from reticent.training.techniques.prefix import PrefixTuning
from reticent.training.techniques.prompt import PromptTuning

TECHNIQUES: dict[Technique, AdaptationTechnique] = {
    Technique.FULL: FullFineTuning(),
    Technique.LORA: Lora(),
    Technique.ADAPTER_H: BottleneckTechnique(Placement.HOULSBY),
    Technique.ADAPTER_P: BottleneckTechnique(Placement.PFEIFFER),
    Technique.PARALLEL: BottleneckTechnique(Placement.PARALLEL),
    Technique.PREFIX: PrefixTuning(),
    Technique.P_TUNING: PTuning(),
    Technique.PROMPT: PromptTuning(),
    Technique.IA3: Ia3(),
    Technique.ICL: InContextLearning(),
}

_OTHER_PEFT = OtherPeft()
_ADDED = (*(t for name, t in TECHNIQUES.items() if name is not Technique.FULL), _OTHER_PEFT)


def technique_of(module: nn.Module) -> AdaptationTechnique:
    """The technique that a module was made by: full fine-tuning, unless adapters or demonstrations are on it."""
    return next((technique for technique in _ADDED if technique.is_on(module)), TECHNIQUES[Technique.FULL])


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
    with _seeded_random_state(model, seed):
        return TECHNIQUES[technique].attach(model, settings)


def attach_demonstrations(model: Any, demonstrations: Sequence[NDArray[np.int64]], begin_id: int | None) -> nn.Module:
    """Adapt a base model by demonstrations, which it reads before every text; see `in_context.InContextModel`.

    Args:
        model: a `transformers` causal or encoder-decoder model, changed in place until `detach`.
        demonstrations: token ids of each, as `template.encode` gives them: beginning-of-text token, text, end.
        begin_id: the tokenizer's beginning-of-text token. Where every demonstration begins with it, so does every text
            of that tokenizer, and it then occurs once, before them all.

    Raises:
        ModelError: the model is adapted already.
        InvalidValueError: there is no demonstration.
    """
    _refuse_adapted(model)
    bare = strip_begin_token(demonstrations, begin_id)
    return InContextModel(model, demonstrations if bare is None else bare, texts_begin=bare is not None)


def detach(module: nn.Module) -> Any:
    """See `AdaptationTechnique.detach`."""
    return technique_of(module).detach(module)


def disabled(module: nn.Module) -> AbstractContextManager[Any]:
    """See `AdaptationTechnique.disabled`."""
    return technique_of(module).disabled(module)


def num_virtual_rows(module: nn.Module) -> int:
    """See `AdaptationTechnique.num_virtual_rows`."""
    return technique_of(module).num_virtual_rows(module)


def positions_taken(module: nn.Module) -> int:
    """See `AdaptationTechnique.positions_taken`."""
    return technique_of(module).positions_taken(module)


def demonstration_ids(module: nn.Module) -> NDArray[np.int64]:
    """See `AdaptationTechnique.demonstration_ids`."""
    return technique_of(module).demonstration_ids(module)


def technique_parameters(module: nn.Module) -> list[nn.Parameter]:
    """See `AdaptationTechnique.parameters`."""
    return technique_of(module).parameters(module)


def num_trainable(module: nn.Module) -> int:
    """Count the numbers that train now."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def enable_gradient_checkpointing(module: nn.Module) -> None:
    """See `AdaptationTechnique.recompute_activations`."""
    technique_of(module).recompute_activations(module)


def save_technique(module: nn.Module, folder: Path) -> None:
    """See `AdaptationTechnique.save`."""
    technique_of(module).save(module, folder)


def load_technique(base_model: Any, technique: Technique, settings: TechniqueSettings, folder: Path) -> nn.Module:
    """Put what `save_technique` wrote on a base model; everything frozen, in evaluation mode.

    Args:
        base_model: the base, changed in place until `detach`. A full fine-tuning is a model beside it, of its type.
        technique: the technique whose folder it is.
        settings: the sizes it was made with.
        folder: what `save_technique` wrote.

    Raises:
        ModelError: the folder is missing or damaged, or does not fit the base.
    """
    _refuse_adapted(base_model)
    return _freeze(TECHNIQUES[technique].load(base_model, settings, folder))


def load_peft_folder(base_model: Any, folder: Path) -> nn.Module:
    """Put a PEFT folder of any kind, also one made elsewhere, on a base model; everything frozen, in evaluation mode.

    Raises:
        ModelError: the folder cannot be read, or does not hold the weights that its settings ask for on this base.
    """
    _refuse_adapted(base_model)
    config, _ = read_peft_folder(folder)
    known = (technique for technique in TECHNIQUES.values() if isinstance(technique, PeftTechnique))
    technique = next((each for each in known if each.peft_type == config.peft_type), _OTHER_PEFT)
    return _freeze(technique.load(base_model, TechniqueSettings(), folder))


def base_class_name(module: nn.Module) -> str:
    """The class of the `transformers` model that a module was made from."""
    return type(technique_of(module).base(module)).__name__


def _freeze(module: nn.Module) -> nn.Module:
    return module.eval().requires_grad_(requires_grad=False)


def _refuse_adapted(model: Any) -> None:
    if any(technique.is_on(model) for technique in _ADDED):
        raise ModelError("this model is adapted already; take that technique off before another is put on")


@contextmanager
def _seeded_random_state(model: Any, seed: int) -> Iterator[None]:
    """Fix the random state within, for PEFT draws from the global one, and put it back."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
