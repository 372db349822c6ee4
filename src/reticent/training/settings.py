"""Settings that determine adapters. They go into a run's manifest, and a resumed run must have the same."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from reticent._settings import FrozenModel
from reticent.models.architecture import ATTENTION_MODULES

DTypeName = Literal["float32", "bfloat16"]

LARGEST_SEED = 2**32 - 1

_TOKENS_AT_ONCE = 4096


class LoraSettings(FrozenModel):
    """Shape and place of every world's LoRA adapter (arXiv 2106.09685).

    Attributes:
        rank: inner dimension r.
        alpha: B A is multiplied by alpha / rank.
        target_modules: last parts of module paths, or `attention`, or `all-linear`.
        num_top_layers: number of blocks to adapt, from the top; None for all.
    """

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    target_modules: tuple[str, ...] = (ATTENTION_MODULES,)
    num_top_layers: int | None = Field(default=None, ge=1)


class Technique(StrEnum):
    """A way to adapt a language model to texts."""

    FULL = "full"
    LORA = "lora"
    ADAPTER_H = "adapter-h"
    ADAPTER_P = "adapter-p"
    PARALLEL = "parallel"
    PREFIX = "prefix"
    P_TUNING = "p-tuning"
    PROMPT = "prompt"
    IA3 = "ia3"
    ICL = "icl"


class TechniqueSettings(FrozenModel):
    """Sizes of every technique; each reads its own. The defaults are PrivAuditor's.

    Attributes:
        rank: LoRA's inner dimension.
        alpha: LoRA's product is multiplied by alpha / rank.
        dropout: on what LoRA and the bottleneck adapters read, while training.
        target_modules: what LoRA adapts: last parts of module paths, or `attention`, or `all-linear`.
        bottleneck: inner dimension of the three bottleneck adapters.
        parallel_scale: what the parallel adapter's output is multiplied by (He et al. 2022, section 4.6: 4).
        prefix_tokens: keys and values that prefix tuning puts before a text, in every block.
        p_tuning_tokens: virtual tokens of P-tuning.
        prompt_tokens: virtual tokens of prompt tuning.
    """

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] = (ATTENTION_MODULES,)
    bottleneck: int = Field(default=256, ge=1)
    parallel_scale: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    prefix_tokens: int = Field(default=30, ge=1)
    p_tuning_tokens: int = Field(default=20, ge=1)
    prompt_tokens: int = Field(default=8, ge=1)


class TrainingSettings(FrozenModel):
    """Training of every world's adapter: AdamW without weight decay, gradients clipped world by world.

    Attributes:
        epochs: passes over a world's records, fixed in advance: stopping early would depend on the data.
        batch_size: about how many records of a world a step takes.
        learning_rate: the peak; reached over the first twentieth of the steps, then falling linearly to zero.
        max_tokens: longer records are cut.
        seed: public; orders the records and initialises A, the same for all worlds.
        dtype: of the base and of all products; adapters and optimiser keep float32 copies.
        worlds_at_once: how many worlds one batched forward and backward pass holds. It bounds memory; the adapters
            depend on it through rounding alone.
    """

    epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=3e-4, gt=0, lt=1)
    max_tokens: int = Field(default=256, ge=2)
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    dtype: DTypeName = "float32"
    worlds_at_once: int = Field(default=8, ge=1)


def worlds_that_fit(batch_size: int, max_tokens: int) -> int:
    """Choose the number of worlds in a batched pass: about 4,096 tokens keep matrix products busy."""
    return max(1, _TOKENS_AT_ONCE // (batch_size * max_tokens))


def records_that_fit(num_worlds: int, num_positions: int, batch_size: int) -> int:
    """Bound the records of each world in a batched pass.

    Twice `batch_size`, which batches reach where corpora do not divide evenly, and more where that is less than twice
    about 4,096 tokens.
    """
    return max(2 * batch_size, 2 * _TOKENS_AT_ONCE // (num_worlds * num_positions))
