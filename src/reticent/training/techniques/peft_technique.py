"""The shared base of the techniques that PEFT has: wrapping, folders, and taking adapters off.

Adapters are kept in float32 whatever the base is. What an adapted model stores are the folders that PEFT itself reads;
what is read must hold exactly the weights that its settings ask for, since PEFT alone only warns when it finds none.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from reticent._files import atomic_write
from reticent.errors import InvalidValueError, ModelError
from reticent.training.checkpoint import save_tensors
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.interface import AdaptationTechnique

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_EMBEDDING_COPIES = (".base_layer.weight", ".base_layer.bias")
"""Ends of the names under which PEFT stores a copy of the base's embeddings beside an adapter that targets them."""


class PeftTechnique(AdaptationTechnique):
    """A technique of PEFT's; a subclass attaches new adapters.

    Attributes:
        peft_type: the technique's name in PEFT's settings.
    """

    peft_type: ClassVar[str]

    def is_on(self, module: nn.Module) -> bool:
        """True if the module is a PEFT model of this technique."""
        from peft import PeftModel

        return isinstance(module, PeftModel) and module.active_peft_config.peft_type == self.peft_type

    def load(self, base: Any, settings: TechniqueSettings, folder: Path) -> nn.Module:
        """A PEFT model around `base`, with the adapters that a PEFT folder holds, frozen."""
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        config, tensors = read_peft_folder(folder)
        self.check_type(config, folder)
        config.inference_mode = True
        misfit = _wrong_task(base, config) or self.misfit(base, config)
        if misfit:
            raise ModelError(f"{folder} does not fit this base model: {misfit}")
        try:
            module: Any = self.wrap(base, config)
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{folder} does not fit this base model: {error}") from None
        wanted = get_peft_model_state_dict(module, save_embedding_layers=False)
        copies = {name: tensors.pop(name) for name in tensors.keys() - wanted if name.endswith(_EMBEDDING_COPIES)}
        problem = _difference(wanted, tensors) or _find_changed_copy(module, copies)
        if problem:
            self.detach(module)
            raise ModelError(f"{folder} does not fit this base model: {problem}")
        set_peft_model_state_dict(module, tensors)
        return module  # type: ignore[no-any-return]

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write a folder that PEFT reads: its settings and the adapters' weights, nothing else."""
        from peft import get_peft_model_state_dict

        adapted: Any = module
        content = {**adapted.peft_config["default"].to_dict(), "inference_mode": True}
        content = {key: sorted(value) if isinstance(value, set) else value for key, value in content.items()}
        text = json.dumps(content, indent=2, sort_keys=True, default=str)
        atomic_write(folder / CONFIG_NAME, lambda path: _write_text(path, text))
        tensors = get_peft_model_state_dict(module, save_embedding_layers=False)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_tensors(folder / WEIGHTS_NAME, contiguous, {"format": "pt"})

    def detach(self, module: nn.Module) -> Any:
        """Take the adapters off and return the base, its weights and modules as they were."""
        adapted: Any = module
        if adapted.active_peft_config.is_prompt_learning:
            return adapted.base_model
        base = adapted.unload()
        # PEFT leaves its settings on the base, and warns of them when it is adapted again.
        if hasattr(base, "peft_config"):
            del base.peft_config
        return base

    def disabled(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which the base alone computes."""
        adapted: Any = module
        context: AbstractContextManager[Any] = adapted.disable_adapter()
        return context

    def base(self, module: nn.Module) -> Any:
        """The model that PEFT wrapped."""
        adapted: Any = module
        return adapted.get_base_model()

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The adapters' parameters; where virtual tokens are made by a network, that network's until it is stored."""
        adapted: Any = module
        config = adapted.active_peft_config
        if not config.is_prompt_learning:
            return [p for name, p in module.named_parameters() if ".default" in name and _is_adapter(name)]
        encoder = adapted.prompt_encoder["default"]
        # Once stored, virtual tokens are read from one table; P-tuning's network made them and is gone.
        return [encoder.embedding.weight] if config.inference_mode else list(encoder.parameters())

    def positions_taken(self, module: nn.Module) -> int:
        """Count the virtual tokens."""
        config: Any = module.active_peft_config
        return int(config.num_virtual_tokens) if config.is_prompt_learning else 0

    def add(self, model: Any, config: Any) -> Any:
        """Freeze a model and wrap it with new adapters that train."""
        return self.wrap(model.requires_grad_(requires_grad=False), config)

    def wrap(self, model: Any, config: Any) -> Any:
        """A PEFT model around `model`, without what PEFT changes in the base or guesses of it."""
        from peft import get_peft_model

        tensor_parallel = getattr(model.config, "pretraining_tp", None)
        with _quiet_peft():
            module = get_peft_model(model, config)
        if tensor_parallel is not None:
            model.config.pretraining_tp = tensor_parallel
        if config.is_prompt_learning:
            # PEFT takes the first matrix with as many rows as the vocabulary for the embeddings.
            module.word_embeddings = model.get_input_embeddings()
        return module

    def check_type(self, config: Any, folder: Path) -> None:
        """Refuse a folder of another technique.

        Raises:
            ModelError: the folder holds another one.
        """
        if config.peft_type != self.peft_type:
            raise ModelError(f"{folder} holds a PEFT adapter of type {config.peft_type}, not {self.peft_type}")

    def misfit(self, model: Any, config: Any) -> str | None:
        """Find why stored settings, whose shapes no weight states, cannot be the base's; None if they can."""
        if not config.is_prompt_learning:
            return None
        width = embedding_width(model)
        return None if config.token_dim == width else f"its tokens have {config.token_dim} features, {width} are needed"


class VirtualTokens(PeftTechnique):
    """A technique whose virtual tokens have rows of logits before the text's."""

    def num_virtual_rows(self, module: nn.Module) -> int:
        """Count the virtual tokens; an encoder-decoder reads them in its encoder, without rows."""
        adapted: Any = module
        return 0 if adapted.config.is_encoder_decoder else int(adapted.active_peft_config.num_virtual_tokens)


class OtherPeft(PeftTechnique):
    """Any other adapter that PEFT reads, made elsewhere: it is scored and never trained here."""

    def is_on(self, module: nn.Module) -> bool:
        """True of every PEFT model: the registry asks the named techniques first."""
        from peft import PeftModel

        return isinstance(module, PeftModel)

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """Refuse: nothing is known of its training."""
        raise InvalidValueError("a PEFT adapter of another kind is only read, not trained")

    def check_type(self, config: Any, folder: Path) -> None:
        """Accept every type."""


def read_peft_folder(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    """The settings and weights of a PEFT folder.

    Raises:
        ModelError: it cannot be read.
    """
    from peft import PeftConfig

    try:
        tensors = safetensors.torch.load_file(folder / WEIGHTS_NAME)
        return PeftConfig.from_pretrained(str(folder)), tensors
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f"{folder} is not a PEFT folder with {CONFIG_NAME} and {WEIGHTS_NAME}: {error}") from None


def task_type(model: Any) -> Any:
    """PEFT's name for the task of a model."""
    from peft import TaskType

    return TaskType.SEQ_2_SEQ_LM if model.config.is_encoder_decoder else TaskType.CAUSAL_LM


def embedding_width(model: Any) -> int:
    """Features of a token's embedding; OPT-350m's hidden states are wider than its embeddings."""
    return int(model.get_input_embeddings().weight.shape[1])


def virtual_token_shape(model: Any) -> dict[str, int]:
    """PEFT's settings of tokens that take the place of embeddings; heads and layers are not used."""
    width = embedding_width(model)
    return {"token_dim": width, "num_attention_heads": 1, "num_layers": 1, "num_transformer_submodules": 1}


def _is_adapter(name: str) -> bool:
    return any(part in name for part in (".lora_", ".ia3_"))


def _wrong_task(model: Any, config: Any) -> str | None:
    task = task_type(model).value
    return None if config.task_type == task else f"it is for {config.task_type} models, this one is for {task}"


def _difference(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> str | None:
    shapes = [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (wanted, found)]
    different = sorted(name for name in wanted.keys() | found.keys() if shapes[0].get(name) != shapes[1].get(name))
    if not different:
        return None
    needed, stored = (shape.get(different[0]) for shape in shapes)
    return f"{len(different)} weights differ, {different[0]} among them (needed {needed}, stored {stored})"


def _find_changed_copy(module: Any, copies: dict[str, Tensor]) -> str | None:
    """Find an embedding that PEFT stored beside an adapter of it and that is not the base's; or None."""
    for name, copy in sorted(copies.items()):
        try:
            own = module.get_parameter(name)
        except AttributeError:
            return f"it stores {name}, which the base does not have"
        if own.shape != copy.shape or not torch.equal(own.detach().to(copy.dtype), copy.to(own.device)):
            return f"it stores {name}, which differs from the base's: it is for another base, or has changed this one"
    return None


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


@contextmanager
def _quiet_peft() -> Iterator[None]:
    """Silence PEFT's advice while it wraps a model; what matters of it is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
