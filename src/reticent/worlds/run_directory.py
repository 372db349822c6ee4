"""A run directory: m worlds' adapters over one base, who is in which world, and the manifest that vouches for both.

    manifest.json        what the run is, and the SHA-256 of every file below; written last, so a run has it or is not
    membership.npz       membership bool[units, m], unit_of_record int64[records], record_hashes uint8[records, 32]
    places.npz           in its stead where the run carries the corpus guarantee: who is where, see `worlds.places`
    worlds.safetensors   for each adapted module `PATH.lora_A` [m, r, in] and `PATH.lora_B` [m, out, r]
    full.safetensors     the same with m = 1: one adapter on all records, the ceiling without privacy
    training/            what an interrupted build resumes from
    ledger.sqlite        the sealed secret, posterior and account, and every release, once text has been generated

Opening a run verifies every hash.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from reticent._files import atomic_write, atomic_write_bytes, sha256_of_file
from reticent._records import check_files, package_versions
from reticent.engine.corpus_engine import CorpusEngine, require_isolation
from reticent.engine.engine import Engine
from reticent.errors import RunDirectoryError, TrainingError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.models.base import LanguageModel, resolve_base_model, usable_device
from reticent.training.checkpoint import save_tensors
from reticent.worlds.assignment import Assignment
from reticent.worlds.manifest import (
    FULL_NAME,
    MANIFEST_NAME,
    MEMBERSHIP_NAME,
    SCHEMA_VERSION,
    WORLDS_NAME,
    Manifest,
    read_manifest,
)
from reticent.worlds.places import PLACES_NAME, read_places


@dataclass(frozen=True)
class Membership:
    """The membership of units in worlds.

    Attributes:
        members: bool[num_units, m].
        unit_of_record: int64[num_records].
        record_hashes: SHA-256 of each record's text, uint8[num_records, 32].
    """

    members: NDArray[np.bool_]
    unit_of_record: NDArray[np.int64]
    record_hashes: NDArray[np.uint8]

    @property
    def record_members(self) -> NDArray[np.bool_]:
        """Record-world membership, bool[num_records, m]."""
        return self.members[self.unit_of_record]


@dataclass(frozen=True)
class RunDirectory:
    """A finished, verified run."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path, accepted: Collection[Assignment] | None = (Assignment.OVERLAPPING,)) -> "RunDirectory":
        """Open a run and verify the hash of each of its files.

        Args:
            folder: the run directory.
            accepted: what its worlds may be; None for anything. Only worlds known to overlap carry the guarantee, so
                that is what one gets without asking.

        Raises:
            RunDirectoryError: it is missing, half-built, damaged, of a newer schema, or its worlds are of another
                kind.
        """
        manifest = read_manifest(folder)
        if accepted is not None and manifest.assignment not in accepted:
            if manifest.assignment is Assignment.UNKNOWN:
                raise RunDirectoryError(
                    f"{folder} does not say who is in which world, so no prior is known and no bound can be stated; "
                    "import its adapters again with --membership"
                )
            needed = " or ".join(sorted(accepted))
            if manifest.assignment is Assignment.PLACES:
                raise RunDirectoryError(
                    f"{folder} carries the corpus guarantee, and {needed} worlds are needed here; build a run without "
                    "--guarantee corpus"
                )
            raise RunDirectoryError(
                f"{folder} holds {manifest.assignment} worlds and {needed} ones are needed here; "
                f"build a run with --assignment {needed}"
            )
        check_files(folder, manifest.files)
        return cls(folder, manifest)

    def worlds(self) -> StackedAdapters:
        """The adapters of all worlds, in the type they were trained in."""
        return read_adapters(self.folder / WORLDS_NAME, self.manifest.lora.alpha)

    def full(self) -> StackedAdapters:
        """The adapter trained on all records.

        Raises:
            RunDirectoryError: the run was imported without one.
        """
        if FULL_NAME not in self.manifest.files:
            raise RunDirectoryError(f"{self.folder} has no adapter on all records; it was imported without one")
        return read_adapters(self.folder / FULL_NAME, self.manifest.lora.alpha)

    def membership(self) -> Membership:
        """The membership of units in worlds.

        Raises:
            RunDirectoryError: the run was imported without its membership.
        """
        if self.manifest.capacity is not None:
            unit_places, hashes = read_places(self.folder / PLACES_NAME, self.manifest.capacity)
            return Membership(unit_places.members, unit_places.unit_of_record, hashes)
        if MEMBERSHIP_NAME not in self.manifest.files:
            raise RunDirectoryError(f"{self.folder} does not say who is in which world; it was imported without")
        with np.load(self.folder / MEMBERSHIP_NAME) as arrays:
            return Membership(arrays["members"], arrays["unit_of_record"], arrays["record_hashes"])

    def occupied(self) -> NDArray[np.bool_]:
        """True for each world of a run with places that holds a unit, bool[m]. Private to the operator.

        Raises:
            RunDirectoryError: the run has no places, or the file is damaged.
        """
        if self.manifest.capacity is None:
            raise RunDirectoryError(f"{self.folder} has no places; build a run with --guarantee corpus")
        return read_places(self.folder / PLACES_NAME, self.manifest.capacity)[0].occupied

    def text_hashes(self) -> frozenset[str] | None:
        """SHA-256 of the texts that the worlds were trained on; None where the run does not know them."""
        if self.manifest.capacity is None and MEMBERSHIP_NAME not in self.manifest.files:
            return None
        record_hashes = self.membership().record_hashes
        return frozenset(bytes(row).hex() for row in record_hashes) if record_hashes.any() else None

    def refuse_not_finite(self) -> None:
        """Check that every number of every adapter is finite.

        Raises:
            RunDirectoryError: one is not; the message names the file and the tensor.
        """
        for name in (WORLDS_NAME, FULL_NAME):
            if name not in self.manifest.files:
                continue
            with safetensors.safe_open(self.folder / name, "pt") as file:
                for key in file.keys():  # noqa: SIM118
                    if not is_finite(file.get_tensor(key)):
                        raise RunDirectoryError(
                            f"{self.folder / name}: {key} holds numbers that are not finite; build or import again"
                        )

    def base(self, name: str | None = None) -> LanguageModel:
        """The base model of this run, found under its recorded name or another, and verified by content.

        Raises:
            ModelError: no such base is found.
            RunDirectoryError: what is found there is another base or another tokenizer.
        """
        base = resolve_base_model(name or self.manifest.base.name)
        self.manifest.base.check(base, f"{self.folder} was built")
        return base

    @property
    def dtype(self) -> torch.dtype:
        """The type that the worlds were trained in; float32 for a run that was imported."""
        dtype: torch.dtype = getattr(torch, self.manifest.training.dtype if self.manifest.training else "float32")
        return dtype

    def engine(self, base: LanguageModel, dtype: torch.dtype | None = None, device: str = "cpu") -> Engine:
        """The ensemble of the public model and all worlds; computes in the training type unless another is given.

        Raises:
            InvalidValueError: there is no such device here.
        """
        model = base.load(dtype or self.dtype).to(usable_device(device))
        return Engine(batched_decoder(model), self.worlds())

    def corpus_engine(
        self, base: LanguageModel, clip: float, dtype: torch.dtype | None = None, device: str = "cpu"
    ) -> CorpusEngine:
        """The ensemble of a run with places, once the device has been tried for isolation; see `engine.corpus_engine`.

        Args:
            base: the base model.
            clip: c of the deployment, in nats.
            dtype: type to compute in; the training type unless given.
            device: where to compute.

        Raises:
            InvalidValueError: there is no such device, or worlds feel each other on it.
            RunDirectoryError: the run has no places, or they are damaged.
        """
        occupied = self.occupied()
        decoder = batched_decoder(base.load(dtype or self.dtype).to(usable_device(device)))
        worlds = self.worlds()
        require_isolation(decoder, worlds, clip)
        return CorpusEngine(decoder, worlds, occupied)


def is_finite(tensor: torch.Tensor) -> bool:
    """True if every number of a tensor is finite, also in single precision, in which adapters compute at the least."""
    return bool(torch.isfinite(tensor.to(torch.float32)).all())


def read_adapters(path: Path, alpha: float) -> StackedAdapters:
    """Read stacked adapters from a safetensors file of a run directory."""
    tensors = safetensors.torch.load_file(path)
    down = {name.removesuffix(".lora_A"): tensor for name, tensor in tensors.items() if name.endswith(".lora_A")}
    up = {name.removesuffix(".lora_B"): tensor for name, tensor in tensors.items() if name.endswith(".lora_B")}
    return StackedAdapters(down, up, alpha)


def write_adapters(path: Path, adapters: StackedAdapters) -> None:
    """Write stacked adapters as a run directory keeps them, durably.

    Raises:
        TrainingError: a number is not finite; nothing was written.
        StorageError: the file cannot be written.
    """
    tensors = {f"{name}.lora_A": tensor.contiguous() for name, tensor in adapters.down.items()}
    tensors |= {f"{name}.lora_B": tensor.contiguous() for name, tensor in adapters.up.items()}
    wrong = next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)
    if wrong is not None:
        raise TrainingError(f"{path.name}: {wrong} holds numbers that are not finite; lower the learning rate")
    save_tensors(path, tensors)


def write_membership(path: Path, membership: Membership) -> None:
    """Write who is in which world, durably."""

    def write(scratch: Path) -> None:
        with scratch.open("wb") as file:
            np.savez_compressed(
                file,
                members=membership.members,
                unit_of_record=membership.unit_of_record,
                record_hashes=membership.record_hashes,
            )

    atomic_write(path, write)


def write_manifest(folder: Path, **content: Any) -> Manifest:
    """Hash the files of a run and write its manifest, which makes the run complete."""
    names = [name for name in (MEMBERSHIP_NAME, PLACES_NAME, WORLDS_NAME, FULL_NAME) if (folder / name).is_file()]
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=package_versions(),
        files={name: sha256_of_file(folder / name) for name in names},
        **content,
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    atomic_write_bytes(folder / MANIFEST_NAME, text.encode())
    return manifest
