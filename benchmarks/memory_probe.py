"""A separate process whose growth is measured: load a run, read a prompt, report resident bytes as JSON.

Usage: python -m benchmarks.memory_probe RUN CONTEXT DTYPE THREADS
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.parity import few_worlds
from benchmarks.storage import probe_prompt
from reticent.models.base import resolve_base_model
from reticent.worlds.run_directory import RunDirectory

_STATUS = Path("/proc/self/status")


def main(run: Path, context_len: int, dtype: torch.dtype, threads: int) -> dict[str, object]:
    """Return resident bytes beyond what imports and the first products take, at the peak of reading and after it."""
    torch.set_num_threads(threads)
    opened = RunDirectory.open(run)
    base = resolve_base_model(opened.manifest.base.name)
    _warm_up(dtype)
    before = _status_bytes("VmRSS")
    engine = opened.engine(base, dtype)
    gc.collect()
    _forget_peak()
    context = engine.open(probe_prompt(context_len, engine.vocab_size))
    peak = _status_bytes("VmHWM")
    resident = _status_bytes("VmRSS")
    worlds_WV = engine.world_logits(context, np.arange(engine.vocab_size))[list(few_worlds(engine.num_worlds))]
    logits = [engine.public_logits(context), *worlds_WV]
    return {
        "peak_bytes": peak - before,
        "resident_bytes": resident - before,
        "logits": [row.tolist() for row in logits],
    }


def _warm_up(dtype: torch.dtype) -> None:
    """Make the libraries set up their threads and buffers, and load the model classes."""
    from transformers import AutoModelForCausalLM  # noqa: F401

    x = torch.randn(129, 512).to(dtype)
    for _ in range(3):
        x = torch.nn.functional.linear(x, torch.ones(512, 512, dtype=dtype))


def _forget_peak() -> None:
    """Reset the peak to what is resident now, so that loading does not count (Linux, proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")


def _status_bytes(key: str) -> int:
    for line in _STATUS.read_text("ascii").splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{_STATUS} has no {key}; memory can be measured on Linux only")


if __name__ == "__main__":
    folder, length, type_name, num_threads = sys.argv[1:]
    json.dump(main(Path(folder), int(length), getattr(torch, type_name), int(num_threads)), sys.stdout)
