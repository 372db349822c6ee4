"""Random adapters of a few worlds, for any decoder."""

from typing import Any

import torch

from reticent.layers.adapters import StackedAdapters, select_modules

NUM_WORLDS = 4


def random_adapters(decoder: Any, names: list[str], rank: int, top: int | None, seed: int = 1) -> StackedAdapters:
    generator = torch.Generator().manual_seed(seed)
    modules = select_modules(decoder.architecture, names, top)
    down = {m.path: 0.4 * torch.randn(NUM_WORLDS, rank, m.in_features, generator=generator) for m in modules}
    up = {m.path: 0.4 * torch.randn(NUM_WORLDS, m.out_features, rank, generator=generator) for m in modules}
    return StackedAdapters(down, up, alpha=2.0 * rank)
