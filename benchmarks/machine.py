"""The machine and its peaks: products at 129 rows, reads from memory, hashing."""

import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.timing import best_seconds

_PACKAGES = ("reticent", "torch", "transformers", "peft", "numpy", "scipy", "safetensors", "sqlalchemy", "uvicorn")
_MANY_ROWS = 2048
_TRIES = 5


@dataclass(frozen=True)
class Machine:
    """Measured peaks, all in units a second.

    Attributes:
        step_flops: floating-point operations of a product with as many rows as a decode step has (worlds + 1).
        many_flops: the same with 2,048 rows, as in training and while a prompt is read.
        bytes_read: bytes from memory, by a matrix-vector product in float32 over far more than the caches hold.
        bytes_hashed: bytes through SHA-256.
    """

    step_flops: float
    many_flops: float
    bytes_read: float
    bytes_hashed: float


def measure(dtype: torch.dtype, device: torch.device, rows: int, *, quick: bool) -> Machine:
    """Measure the peaks for one type and device; `quick` takes small sizes, which say little about the machine."""
    width = 256 if quick else 2048
    many = rows if quick else _MANY_ROWS
    matrix_rows = 1024 if quick else 32768
    weight = torch.randn(width, width, device=device).to(dtype)
    matrix, vector = torch.ones(matrix_rows, 2048, device=device), torch.ones(2048, device=device)
    block = bytes((1 if quick else 64) * 2**20)

    def flops(num_rows: int) -> float:
        x = torch.randn(num_rows, width, device=device).to(dtype)
        return 2 * num_rows * width**2 / best_seconds(lambda: torch.nn.functional.linear(x, weight), _TRIES * 4, device)

    return Machine(
        step_flops=flops(rows),
        many_flops=max(flops(rows), flops(many)),
        bytes_read=matrix.nbytes / best_seconds(lambda: torch.mv(matrix, vector), _TRIES, device),
        bytes_hashed=len(block) / best_seconds(lambda: hashlib.sha256(block).digest(), _TRIES),
    )


def description(device: torch.device) -> dict[str, object]:
    """Describe the machine for a reader of the numbers: processor or accelerator, cores, threads, versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
