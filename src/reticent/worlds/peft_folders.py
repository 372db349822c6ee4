"""Exchange with PEFT: export one world as a folder PEFT loads, import m such folders as a run."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from reticent import _validate
from reticent._files import atomic_write_bytes, make_new_folder
from reticent.adaptation.checkpoint import save_tensors
from reticent.adaptation.settings import LoraSettings
from reticent.ensemble.adapters import ALL_LINEAR_MODULES, StackedAdapters, first_adapted_layer, select_modules
from reticent.ensemble.architecture import Architecture
from reticent.ensemble.forward import batched_decoder
from reticent.errors import InvalidValueError, RunDirectoryError
from reticent.models import BaseRecord, resolve_base_model
from reticent.worlds.collection import (
    Membership,
    RunDirectory,
    write_adapters,
    write_manifest,
    write_membership,
)
from reticent.worlds.manifest import FULL_NAME, MEMBERSHIP_NAME, WORLDS_NAME

ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNSUPPORTED = (
    "use_dora",
    "use_rslora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to initialise LoRA that leave the base as it is; others (PiSSA, OLoRA, CorDA, LoftQ) also change its weights."""


def export_world(run: RunDirectory, world: int | None, out: Path, model: str | None = None) -> None:
    """Write one world's adapter, or the one on all records (`world` None), as a PEFT folder.

    `model` says where the base is, if it has moved.

    Raises:
        InvalidValueError: there is no such world.
        OutputExistsError: `out` exists.
    """
    from peft import LoraConfig, TaskType

    adapters = run.full() if world is None else _world(run, world)
    base = run.base(model)
    architecture = batched_decoder(base.load()).architecture
    fan_in_fan_out = {
        module.path: module.fan_in_fan_out
        for layer in architecture.layers
        for group in layer.groups
        for module in group.modules
    }
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=str(base.folder),
        r=adapters.rank,
        lora_alpha=adapters.alpha if adapters.alpha % 1 else int(adapters.alpha),
        lora_dropout=0.0,
        target_modules=sorted(adapters.down),
        fan_in_fan_out=any(fan_in_fan_out[path] for path in adapters.down),
        inference_mode=True,
    )
    make_new_folder(out)
    config.save_pretrained(out)
    tensors = {f"{_PREFIX}{path}.lora_A.weight": tensor[0].contiguous() for path, tensor in adapters.down.items()}
    tensors |= {f"{_PREFIX}{path}.lora_B.weight": tensor[0].contiguous() for path, tensor in adapters.up.items()}
    save_tensors(out / ADAPTER_WEIGHTS_NAME, tensors, {"format": "pt"})


def import_worlds(
    folders: Sequence[Path], model: str, out: Path, membership: Path | None = None, full: Path | None = None
) -> RunDirectory:
    """Make a run from m PEFT LoRA folders, world j from the j-th.

    Args:
        folders: an even number of PEFT folders with the same rank, alpha and modules.
        model: the base they sit on.
        out: the run directory to make.
        membership: an .npz file with `members`, bool[units, m] with m/2 true a row; without it the run cannot say who
            is in which world, and a record's prior is whatever it was made to be.
        full: a PEFT folder with an adapter on all records.

    Raises:
        InvalidValueError: an odd number of folders, or a membership of another shape.
        RunDirectoryError: a folder is not a plain LoRA adapter, or differs from the first, or does not fit the base.
        OutputExistsError: `out` exists. After any of these nothing was written.
    """
    _validate.num_worlds(len(folders))
    base = resolve_base_model(model)
    architecture = batched_decoder(base.load()).architecture
    read = [_read_folder(folder) for folder in folders]
    worlds = _stacked(folders, read)
    _check_fit(architecture, worlds)
    members = None if membership is None else _read_membership(membership, len(folders))
    on_all = None if full is None else _stacked([folders[0], full], [read[0], _read_folder(full)]).one(1)
    make_new_folder(out)
    write_adapters(out / WORLDS_NAME, worlds)
    if on_all is not None:
        write_adapters(out / FULL_NAME, on_all)
    if members is not None:
        write_membership(out / MEMBERSHIP_NAME, members)
    write_manifest(
        out,
        num_worlds=len(folders),
        base=BaseRecord.of(base, architecture.class_name),
        lora=LoraSettings(
            rank=worlds.rank,
            alpha=worlds.alpha,
            target_modules=tuple(sorted({path.rpartition(".")[2] for path in worlds.down})),
        ),
    )
    atomic_write_bytes(out / "imported.json", json.dumps([str(folder) for folder in folders], indent=2).encode())
    return RunDirectory.open(out)


def _world(run: RunDirectory, world: int) -> StackedAdapters:
    _validate.integer_in_range("world", world, 0, run.manifest.num_worlds - 1)
    return run.worlds().one(world)


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        if not isinstance(config, dict):
            raise ValueError("adapter_config.json holds no settings")
        tensors = safetensors.torch.load_file(folder / ADAPTER_WEIGHTS_NAME)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunDirectoryError(
            f"{folder} is not a PEFT folder with adapter_config.json and adapter_model.safetensors: {error}"
        ) from None
    if config.get("peft_type") != "LORA":
        raise RunDirectoryError(f"{folder} holds a {config.get('peft_type')} adapter; only LORA can be imported")
    used = [name for name in _UNSUPPORTED if config.get(name)]
    used += ["bias"] if config.get("bias", "none") != "none" else []
    used += ["init_lora_weights"] if config.get("init_lora_weights") not in _INITIALISATIONS else []
    if used:
        raise RunDirectoryError(f"{folder} uses {', '.join(used)}, which stacked worlds do not have")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or not 0 < alpha <= sys.float_info.max:
        raise RunDirectoryError(f"{folder}: adapter_config.json needs a positive finite lora_alpha, it has {alpha!r}")
    if not tensors:
        raise RunDirectoryError(f"{folder} holds no adapter: adapter_model.safetensors is empty")
    return config, tensors


def _stacked(
    folders: Sequence[Path], read: Sequence[tuple[dict[str, Any], dict[str, torch.Tensor]]]
) -> StackedAdapters:
    (first_config, first), *others = read
    for folder, (config, tensors) in zip(folders[1:], others, strict=True):
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if config["lora_alpha"] != first_config["lora_alpha"] or shapes != {n: t.shape for n, t in first.items()}:
            raise RunDirectoryError(f"{folder} differs from {folders[0]} in rank, alpha or modules")
    down: dict[str, torch.Tensor] = {}
    up: dict[str, torch.Tensor] = {}
    for name in first:
        path, _, kind = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if kind not in ("lora_A", "lora_B"):
            raise RunDirectoryError(f"{folders[0]} holds {name}, which is no part of a plain LoRA adapter")
        (down if kind == "lora_A" else up)[path] = torch.stack([tensors[name] for _, tensors in read])
    if down.keys() != up.keys():
        raise RunDirectoryError(f"{folders[0]} has only one of lora_A and lora_B for {min(down.keys() ^ up.keys())}")
    return StackedAdapters(down, up, float(first_config["lora_alpha"]))


def _check_fit(architecture: Architecture, adapters: StackedAdapters) -> None:
    """Every adapter on a module of the base, of that module's size, and all of one rank."""
    first_adapted_layer(architecture, adapters.down)
    for module in select_modules(architecture, [ALL_LINEAR_MODULES], None):
        if module.path not in adapters.down:
            continue
        found = adapters.down[module.path].shape[1:], adapters.up[module.path].shape[1:]
        wanted = (adapters.rank, module.in_features), (module.out_features, adapters.rank)
        if found != wanted:
            raise RunDirectoryError(
                f"the adapters on {module.path} have shapes {tuple(found[0])} and {tuple(found[1])}, "
                f"the base and rank {adapters.rank} need {wanted[0]} and {wanted[1]}"
            )


def _read_membership(path: Path, num_worlds: int) -> Membership:
    try:
        with np.load(path) as arrays:
            members = arrays["members"].astype(np.bool_)
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise InvalidValueError(f"membership {path}: {error}; give an .npz file with `members`") from None
    is_matrix = members.ndim == 2 and members.shape[1] == num_worlds and len(members) > 0
    if not is_matrix or (members.sum(1) * 2 != num_worlds).any():
        raise InvalidValueError(
            f"membership {path}: `members` must be [units, {num_worlds}] with {num_worlds // 2} true in every row"
        )
    return Membership(members, np.arange(len(members)), np.zeros((len(members), 32), dtype=np.uint8))
