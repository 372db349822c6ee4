"""The resumable state of a group of worlds in training: parameters, optimiser, running totals and the next step."""

import time
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from reticent._files import atomic_write

_SECONDS_BETWEEN_SAVES = 30.0


class TrainingCheckpoint:
    """A file that holds the state after some step, replaced as a whole.

    Restoring and going on gives the same tensors, bit for bit, as never having stopped.
    """

    def __init__(
        self,
        path: Path,
        seconds_between_saves: float = _SECONDS_BETWEEN_SAVES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._interval = seconds_between_saves
        self._clock = clock
        self._last_save = clock()

    def restore(self, parameters: list[Tensor], optimiser: torch.optim.Optimizer, totals: Tensor) -> int:
        """Load the saved state into place and return the next step; 0, changing nothing, if there is none."""
        if not self.path.is_file():
            return 0
        with safetensors.safe_open(self.path, framework="pt") as file:
            step = int(file.metadata()["next_step"])
            totals.copy_(file.get_tensor("totals"))
            for index, parameter in enumerate(parameters):
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"{index}.parameter"))
                optimiser.state[parameter] = {
                    "step": torch.tensor(float(step), device=parameter.device),
                    "exp_avg": file.get_tensor(f"{index}.exp_avg").to(parameter.device),
                    "exp_avg_sq": file.get_tensor(f"{index}.exp_avg_sq").to(parameter.device),
                }
        return step

    def save_if_due(
        self, next_step: int, parameters: list[Tensor], optimiser: torch.optim.Optimizer, totals: Tensor
    ) -> None:
        """Save if the last save is long enough ago.

        Raises:
            StorageError: the disk is full; the earlier state remains.
        """
        if self._clock() - self._last_save < self._interval:
            return
        tensors = {"totals": totals}
        for index, parameter in enumerate(parameters):
            state = optimiser.state[parameter]
            tensors[f"{index}.parameter"] = parameter.detach().contiguous()
            tensors[f"{index}.exp_avg"] = state["exp_avg"]
            tensors[f"{index}.exp_avg_sq"] = state["exp_avg_sq"]
        save_tensors(self.path, tensors, {"next_step": str(next_step)})
        self._last_save = self._clock()


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file durably, as a whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """

    def write(scratch: Path) -> None:
        try:
            safetensors.torch.save_file(tensors, scratch, metadata)
        except safetensors.SafetensorError as error:
            # Only its message distinguishes a full disk from a defect.
            raise OSError(str(error)) from error

    atomic_write(path, write)
