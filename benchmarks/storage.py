"""Rows on what is stored: loading a run directory against PEFT, and memory against its arithmetic minimum."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import limits, parity
from benchmarks.peers import adapter_name, load_all_into_peft
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, measure_ms
from benchmarks.workspace import Workspace
from reticent.engine.engine import Engine
from reticent.layers.adapters import StackedAdapters
from reticent.models.base import BaseModelRecord
from reticent.training.settings import LoraSettings
from reticent.worlds.assignment import membership_matrix
from reticent.worlds.manifest import MEMBERSHIP_NAME, WORLDS_NAME
from reticent.worlds.run_directory import Membership, RunDirectory, write_adapters, write_manifest, write_membership

_RECORDS = 1000
_REPOSITORY = Path(__file__).resolve().parents[1]


def write_run(workspace: Workspace, folder: Path, adapters: StackedAdapters) -> Path:
    """A finished run directory that holds these adapters."""
    folder.mkdir()
    members = membership_matrix(_RECORDS, adapters.num_adapters, workspace.seed)
    hashes = np.zeros((_RECORDS, 32), dtype=np.uint8)
    write_membership(folder / MEMBERSHIP_NAME, Membership(members, np.arange(_RECORDS), hashes))
    write_adapters(folder / WORLDS_NAME, adapters)
    base = BaseModelRecord(
        name=workspace.base.name,
        class_name=workspace.architecture.class_name,
        content_hash=workspace.base.content_hash,
        tokenizer_hash=workspace.base.tokenizer_hash,
    )
    lora = LoraSettings(rank=adapters.rank, alpha=adapters.alpha)
    write_manifest(folder, num_worlds=adapters.num_adapters, base=base, lora=lora)
    return folder


def run_folder(workspace: Workspace, adapters: StackedAdapters) -> Path:
    """The run directory of the rows below, written once."""
    if "run" not in workspace.kept:
        workspace.kept["run"] = write_run(workspace, workspace.scratch / "run", adapters)
    folder: Path = workspace.kept["run"]
    return folder


def load_run(workspace: Workspace) -> Measured:
    """Open a run, verify its hashes and arrange its adapters, against PEFT loading as many; the base is in memory."""
    peft, adapters, peft_ms = load_all_into_peft(workspace)
    folder = run_folder(workspace, adapters)
    _check_loaded(workspace, folder, peft, adapters)
    ours = tuple(measure_ms(lambda: _load_engine(workspace, folder)) for _ in range(workspace.sizes.heavy_pairs))
    size = (folder / WORLDS_NAME).stat().st_size
    peaks = workspace.peaks
    least = 1e3 * (size / peaks.bytes_hashed + size / peaks.bytes_read)
    notes = f"PEFT loaded once; {size / 2**20:.0f} MiB hashed and read; both from the page cache"
    return Measured(Paired(ours, (peft_ms,)), least / peft_ms, notes=notes)


def _check_loaded(workspace: Workspace, folder: Path, peft: Any, adapters: StackedAdapters) -> None:
    """PEFT holds the same matrices, and the engine of the run computes what an engine of the adapters computes."""
    for world in parity.few_worlds(adapters.num_adapters):
        for side, tensors in (("lora_A", adapters.down), ("lora_B", adapters.up)):
            for path, stacked in tensors.items():
                theirs = peft.get_parameter(f"base_model.model.{path}.{side}.{adapter_name(world)}.weight")
                parity.require(torch.equal(theirs, stacked[world]), f"PEFT loaded another {side} of {path}")
    prompt = workspace.prompt(workspace.sizes.context)
    candidates_K = np.arange(workspace.sizes.num_candidates)
    engines = Engine(workspace.decoder, adapters), _load_engine(workspace, folder)
    first, second = (engine.world_logits(engine.open(prompt), candidates_K) for engine in engines)
    parity.require(bool((first == second).all()), "the run's engine computes other logits than its adapters")


def _load_engine(workspace: Workspace, folder: Path) -> Engine:
    return Engine(workspace.decoder, RunDirectory.open(folder).worlds())


def memory(workspace: Workspace) -> Measured:
    """Peak resident growth of a process that loads a run and reads a prompt, against base + adapters + caches."""
    adapters = workspace.adapters("attention")
    folder = run_folder(workspace, adapters)
    context = workspace.sizes.memory_context
    command = [sys.executable, "-m", "benchmarks.memory_probe", str(folder), str(context)]
    command += [str(workspace.dtype).removeprefix("torch."), str(torch.get_num_threads())]
    out = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)  # noqa: S603
    if out.returncode:
        raise RuntimeError(f"the memory probe failed: {out.stderr.strip().splitlines()[-1:]}")
    probe = json.loads(out.stdout)
    _check_probe(workspace, adapters, probe["logits"])
    least = limits.memory_bytes(workspace.architecture, adapters, context)
    times = Paired((probe["peak_bytes"] / 2**20,), (least / 2**20,))
    resident = probe["resident_bytes"]
    notes = f"peak while reading {context} tokens, less what imports take; {resident / 2**20:.0f} MiB afterwards"
    return Measured(times, 1.0, unit="MiB", notes=notes, extra={"resident_ratio": resident / least})


def _check_probe(workspace: Workspace, adapters: StackedAdapters, logits: list[list[float]]) -> None:
    """The process whose memory is measured must have computed the right thing; the public model comes first."""
    prompt = probe_prompt(workspace.sizes.memory_context, workspace.architecture.vocab_size)
    reference = parity.ReferenceLogits.compute(workspace, adapters, prompt)
    reference.require_rows("the probe", np.array(logits)[:, reference.candidates_K])


def probe_prompt(length: int, vocab_size: int) -> list[int]:
    """The prompt that the probe reads: spread over the vocabulary."""
    return [(7919 * (i + 1)) % vocab_size for i in range(length)]


BENCHMARKS = (
    Benchmark(
        "load-run",
        "loading a run directory, hashes verified",
        "PEFT loading as many adapters",
        1 / 20,
        "<=",
        load_run,
        weight=5,
    ),
    Benchmark(
        "memory-512",
        "memory of all worlds at 512 tokens of context, attention of all blocks",
        "the arithmetic minimum: base, adapters, caches",
        1.3,
        "<=",
        memory,
        weight=45,
    ),
)
