"""Check of a PEFT LoRA configuration: that it asks for what stacked worlds compute, and for nothing else.

PEFT's configuration grows with each version, and an option that is not honoured makes another model of the same
tensors. So every setting is known here by name, with the values under which LoRA is `B A x · alpha / r`; any other key
must be off (null, false or empty), and everything else is refused.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reticent.errors import RunDirectoryError

CONFIG_NAME = "adapter_config.json"

_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to initialise LoRA that leave the base as it is; others (PiSSA, OLoRA, CorDA, LoftQ) also change its weights."""

_WITHOUT_EFFECT = (
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "target_modules",
)
"""Settings that say how the tensors came about or where they sit, which the tensors' names say themselves."""

_KNOWN: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_WITHOUT_EFFECT, lambda value: True),
    "bias": lambda value: value == "none",
    "init_lora_weights": lambda value: value in _INITIALISATIONS,
    "lora_alpha": lambda value: _is_number(value) and 0 < value <= sys.float_info.max,
    "r": lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
    "task_type": lambda value: value in (None, "CAUSAL_LM"),
}


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a PEFT folder that is a plain LoRA adapter.

    Raises:
        RunDirectoryError: there is none, it is of another kind of adapter, or it has a setting that stacked worlds
            do not have; the message names the settings.
    """
    try:
        config = json.loads((folder / CONFIG_NAME).read_text("utf-8"), object_pairs_hook=_distinct)
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG_NAME} holds no settings")
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{folder} is not a PEFT folder with a readable {CONFIG_NAME}: {error}") from None
    if config.get("peft_type") != "LORA":
        raise RunDirectoryError(f"{folder} holds a {config.get('peft_type')} adapter; only LORA can be imported")
    for name in ("lora_alpha", "r"):
        if not _KNOWN[name](config.get(name)):
            raise RunDirectoryError(
                f"{folder}: {CONFIG_NAME} needs a positive finite {name}, it has {config.get(name)!r}"
            )
    refused = [name for name, value in config.items() if not _KNOWN.get(name, _is_off)(value)]
    if refused:
        raise RunDirectoryError(
            f"{folder} uses {', '.join(sorted(refused))}, which stacked worlds do not have or nobody here knows"
        )
    return config


def _is_off(value: object) -> bool:
    return value is None or value is False or value in ({}, [])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return settings
