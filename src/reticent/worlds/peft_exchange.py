"""Exchange with PEFT: export one world as a folder PEFT loads, import m such folders as a run."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from reticent import _validate
from reticent._files import atomic_write_bytes, make_new_folder, sha256_of_file
from reticent.errors import InvalidValueError, ModelError, RunDirectoryError
from reticent.layers.adapters import StackedAdapters, first_adapted_layer, select_modules
from reticent.layers.forward import batched_decoder
from reticent.models.architecture import ALL_LINEAR_MODULES, Architecture
from reticent.models.base import BaseModelRecord, LanguageModel, resolve_base_model
from reticent.training.checkpoint import save_tensors
from reticent.training.settings import LoraSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME, MEMBERSHIP_NAME, WORLDS_NAME
from reticent.worlds.peft_config import CONFIG_NAME, read_config
from reticent.worlds.places import PLACES_NAME, Capacity, places_of_worlds, write_places
from reticent.worlds.run_directory import (
    Membership,
    RunDirectory,
    is_finite,
    write_adapters,
    write_manifest,
    write_membership,
)
from reticent.worlds.world_records import SCHEMA_VERSION as RECORD_SCHEMA_VERSION
from reticent.worlds.world_records import WorldRecord, join_memberships, read_world_record, write_world_record

ADAPTER_WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class _Adapter:
    """The contents of a PEFT folder: its configuration, its tensors, and its record of the run it is from."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    record: WorldRecord | None


def export_world(run: RunDirectory, world: int | None, out: Path, model: str | None = None) -> None:
    """Write one world's adapter, or the one on all records (`world` None), as a PEFT folder.

    A world's folder says which units it holds, where the run knows. `model` says where the base is, if it has moved.

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
    if world is not None and run.manifest.assignment is not Assignment.UNKNOWN:
        members = run.membership().members
        record = WorldRecord(
            schema_version=RECORD_SCHEMA_VERSION,
            run=sha256_of_file(run.folder / MANIFEST_NAME),
            world=world,
            num_worlds=run.manifest.num_worlds,
            assignment=run.manifest.assignment,
            places=run.manifest.places,
            unit_records=run.manifest.unit_records,
            num_units=len(members),
            units=tuple(np.flatnonzero(members[:, world]).tolist()),
            weights=sha256_of_file(out / ADAPTER_WEIGHTS_NAME),
        )
        write_world_record(out, record)


def import_worlds(
    folders: Sequence[Path],
    model: str,
    out: Path,
    membership: Path | None = None,
    full: Path | None = None,
    note: Callable[[str], None] | None = None,
) -> RunDirectory:
    """Make a run from m PEFT LoRA folders, world j from the j-th.

    Args:
        folders: PEFT folders with the same rank, alpha and modules; an even number, unless they say that they are the
            worlds of a run with places.
        model: the base they sit on.
        out: the run directory to make.
        membership: an .npz file with `members`, bool[units, m] with m/2 true a row. Without it, and without what
            `export_world` wrote into the folders, nobody can say who is in which world: the run's assignment is
            unknown, and nothing is released from it.
        full: a PEFT folder with an adapter on all records.
        note: takes a sentence about what looks amiss: an adapter that says that it was made for another base.

    Raises:
        InvalidValueError: an odd number of folders, or a membership of another shape, or not that of the folders.
        RunDirectoryError: a folder is not a plain LoRA adapter of finite numbers, or differs from the first, or does
            not fit the base, or the folders are worlds of different runs or not all of one.
        OutputExistsError: `out` exists. After any of these nothing was written.
    """
    if not folders:
        _validate.num_worlds(0)
    base = resolve_base_model(model)
    architecture = batched_decoder(base.load()).architecture
    read = [_read_folder(folder) for folder in folders]
    worlds = _stack_adapters(read)
    _check_fit(architecture, worlds)
    assignment, members, capacity = _membership(read, membership)
    if capacity is None:
        _validate.num_worlds(len(folders))
    full_adapter = None if full is None else _read_folder(full)
    on_all = None if full_adapter is None else _stack_adapters([read[0], full_adapter]).one(1)
    if note is not None:
        for sentence in _other_bases(base, [*read, *([full_adapter] if full_adapter else [])]):
            note(sentence)
    make_new_folder(out)
    write_adapters(out / WORLDS_NAME, worlds)
    if on_all is not None:
        write_adapters(out / FULL_NAME, on_all)
    if members is not None and capacity is not None:
        write_places(out / PLACES_NAME, places_of_worlds(capacity, members.members), members.record_hashes)
    elif members is not None:
        write_membership(out / MEMBERSHIP_NAME, members)
    write_manifest(
        out,
        num_worlds=len(folders),
        base=BaseModelRecord.of(base, architecture.class_name),
        lora=LoraSettings(
            rank=worlds.rank,
            alpha=worlds.alpha,
            target_modules=tuple(sorted({path.rpartition(".")[2] for path in worlds.down})),
        ),
        assignment=assignment,
        places=None if capacity is None else capacity.places,
        unit_records=None if capacity is None else capacity.records,
    )
    atomic_write_bytes(out / "imported.json", json.dumps([str(folder) for folder in folders], indent=2).encode())
    return RunDirectory.open(out, None)


def _world(run: RunDirectory, world: int) -> StackedAdapters:
    _validate.integer_in_range("world", world, 0, run.manifest.num_worlds - 1)
    return run.worlds().one(world)


def _read_folder(folder: Path) -> _Adapter:
    """A PEFT folder that is a plain LoRA adapter of finite numbers.

    Raises:
        RunDirectoryError: it is something else; the message names the folder, and the setting or file and tensor.
    """
    config = read_config(folder)
    path = folder / ADAPTER_WEIGHTS_NAME
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunDirectoryError(
            f"{folder} is not a PEFT folder with a readable {ADAPTER_WEIGHTS_NAME}: {error}"
        ) from None
    if not tensors:
        raise RunDirectoryError(f"{folder} holds no adapter: {ADAPTER_WEIGHTS_NAME} is empty")
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise RunDirectoryError(
                f"{path}: {name} holds numbers of type {str(tensor.dtype).removeprefix('torch.')}; "
                "save the adapter unquantised, in floating point"
            )
        if not is_finite(tensor):
            raise RunDirectoryError(f"{path}: {name} holds numbers that are not finite; train or save it again")
        rank = {"lora_A": 0, "lora_B": 1}.get(name.removesuffix(".weight").rpartition(".")[2])
        if rank is not None and (tensor.dim() != 2 or tensor.shape[rank] != config["r"]):
            raise RunDirectoryError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, which is not of rank {config['r']}, "
                f"the r in {CONFIG_NAME}"
            )
    return _Adapter(folder, config, tensors, read_world_record(folder, sha256_of_file(path)))


def _other_bases(base: LanguageModel, adapters: Sequence[_Adapter]) -> list[str]:
    """A sentence for each base that adapters say they were made for and that is another than theirs."""
    recorded = Counter(str(name) for adapter in adapters if (name := adapter.config.get("base_model_name_or_path")))
    return [
        f"{count} of {len(adapters)} adapters say that they were made for {name!r} and are put on {base.name!r}: "
        "on another base than their own they compute nothing meaningful"
        for name, count in recorded.items()
        if not _is_same_base(name, base)
    ]


def _is_same_base(name: str, base: LanguageModel) -> bool:
    """True if a recorded name is the base's, or that of a folder with the same weights."""
    if name in (base.name, str(base.folder)):
        return True
    folder = Path(name).expanduser()
    try:
        return folder.is_dir() and LanguageModel(name, folder).content_hash == base.content_hash
    except (ModelError, OSError):
        return False


def _membership(
    adapters: Sequence[_Adapter], given: Path | None
) -> tuple[Assignment, Membership | None, Capacity | None]:
    """Find the assignment, the membership and the places: from the folders' records, or from a file."""
    known = join_memberships([adapter.folder for adapter in adapters], [adapter.record for adapter in adapters])
    members = None if given is None else _read_members(given, len(adapters))
    if known is None:
        found = None if members is None else _anonymous(members)
        return Assignment.UNKNOWN if found is None else Assignment.OVERLAPPING, found, None
    assignment, recorded, capacity = known
    if members is not None and not np.array_equal(members, recorded):
        raise InvalidValueError(f"membership {given} is not what the folders say; leave it out, and theirs is taken")
    return assignment, _anonymous(recorded), capacity


def _stack_adapters(adapters: Sequence[_Adapter]) -> StackedAdapters:
    first, *others = adapters
    for other in others:
        shapes, expected = ({n: t.shape for n, t in one.tensors.items()} for one in (other, first))
        if other.config["lora_alpha"] != first.config["lora_alpha"] or shapes != expected:
            raise RunDirectoryError(f"{other.folder} differs from {first.folder} in rank, alpha or modules")
    down: dict[str, torch.Tensor] = {}
    up: dict[str, torch.Tensor] = {}
    for name in first.tensors:
        path, _, kind = name.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if kind not in ("lora_A", "lora_B"):
            raise RunDirectoryError(f"{first.folder} holds {name}, which is no part of a plain LoRA adapter")
        (down if kind == "lora_A" else up)[path] = torch.stack([adapter.tensors[name] for adapter in adapters])
    if down.keys() != up.keys():
        raise RunDirectoryError(f"{first.folder} has only one of lora_A and lora_B for {min(down.keys() ^ up.keys())}")
    return StackedAdapters(down, up, float(first.config["lora_alpha"]))


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


def _read_members(path: Path, num_worlds: int) -> NDArray[np.bool_]:
    try:
        with np.load(path) as arrays:
            members: NDArray[np.bool_] = arrays["members"].astype(np.bool_)
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise InvalidValueError(f"membership {path}: {error}; give an .npz file with `members`") from None
    is_matrix = members.ndim == 2 and members.shape[1] == num_worlds and len(members) > 0
    if not is_matrix or (members.sum(1) * 2 != num_worlds).any():
        raise InvalidValueError(
            f"membership {path}: `members` must be [units, {num_worlds}] with {num_worlds // 2} true in every row"
        )
    return members


def _anonymous(members: NDArray[np.bool_]) -> Membership:
    """A membership that knows units by number, and not their texts."""
    return Membership(members, np.arange(len(members)), np.zeros((len(members), 32), dtype=np.uint8))
