"""The peers: one `transformers` decode step, and PEFT with every adapter loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType
from safetensors.torch import save_file
from transformers import DynamicCache

from benchmarks.timing import measure_ms
from benchmarks.workspace import Workspace
from reticent.layers.adapters import StackedAdapters


class TransformersStream:
    """Greedy decoding by `transformers` with its own cache; each `step` takes one token in and one out."""

    def __init__(self, model: Any, prompt: list[int]) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._next = torch.tensor([prompt], device=model.device)
        self.step()

    @torch.inference_mode()
    def step(self) -> int:
        """Decode one token and return it."""
        out = self._model(input_ids=self._next, cache=self._cache, use_cache=True, logits_to_keep=1)
        self._next = out.logits[:, -1].argmax(-1, keepdim=True)
        return int(self._next)


@torch.inference_mode()
def prefill(model: Any, prompt: list[int]) -> None:
    """Read a prompt into a new cache, as far as the first next-token logits."""
    ids = torch.tensor([prompt], device=model.device)
    model(input_ids=ids, cache=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)


class PeftMixedStream:
    """One decode stream a world in one PEFT mixed batch (`adapter_names`, one a row); None is the bare base."""

    def __init__(self, model: Any, prompt: list[int], worlds: Sequence[int | None]) -> None:
        self._model = model
        self._names = ["__base__" if world is None else adapter_name(world) for world in worlds]
        self._cache = DynamicCache(config=model.config)
        self._next = torch.tensor([prompt], device=model.device).expand(len(worlds), -1)
        self.logits_WV = self._forward()

    @torch.inference_mode()
    def _forward(self) -> torch.Tensor:
        out = self._model(
            input_ids=self._next, cache=self._cache, use_cache=True, logits_to_keep=1, adapter_names=self._names
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits

    def step(self, token: int) -> None:
        """Append the same released token to every world's context."""
        self._next = torch.full((len(self._names), 1), token, device=self._model.device)
        self.logits_WV = self._forward()


def adapter_name(world: int) -> str:
    """Name a world's adapter for PEFT."""
    return f"world{world}"


def lora_config(adapters: StackedAdapters) -> LoraConfig:
    """PEFT's settings for adapters of this shape."""
    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=adapters.rank,
        lora_alpha=int(adapters.alpha),
        lora_dropout=0.0,
        target_modules=sorted(adapters.down),
    )


def write_peft_folders(folder: Path, adapters: StackedAdapters) -> list[Path]:
    """One folder a world, as PEFT saves adapters."""
    config, folders = lora_config(adapters), []
    config.inference_mode = True
    for world in range(adapters.num_adapters):
        out = folder / adapter_name(world)
        config.save_pretrained(out)
        tensors = {
            f"base_model.model.{path}.{kind}.weight": stacked[world].cpu().contiguous()
            for kind, side in (("lora_A", adapters.down), ("lora_B", adapters.up))
            for path, stacked in side.items()
        }
        save_file(tensors, out / "adapter_model.safetensors", {"format": "pt"})
        folders.append(out)
    return folders


def load_all_into_peft(workspace: Workspace) -> tuple[Any, StackedAdapters, float]:
    """PEFT with every world's adapter loaded, those adapters, and the milliseconds it took; loaded once a run.

    The time is for the adapters alone: the base is in memory before, and the folders are in the page cache.
    """
    if "peft" not in workspace.kept:
        adapters = workspace.adapters("attention")
        folders = write_peft_folders(workspace.scratch / "peft", adapters)
        base = workspace.base.load(workspace.dtype)
        loaded: list[Any] = []

        def load() -> None:
            first = PeftModel.from_pretrained(base, folders[0], adapter_name(0), autocast_adapter_dtype=False)
            for world, folder in enumerate(folders[1:], start=1):
                first.load_adapter(folder, adapter_name(world), autocast_adapter_dtype=False)
            loaded.append(first.eval())

        took = measure_ms(load)
        workspace.kept["peft"] = (loaded[0], adapters, took)
    model, adapters, took = workspace.kept["peft"]
    return model, adapters, took
