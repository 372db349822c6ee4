"""Differentially private training (DP-SGD, arXiv 1607.00133): calibrated noise on sums of clipped gradients.

Formal guarantee. Let P be the training with n members, batch size b, T steps and noise multiplier σ. In each step every
member enters independently with probability q = b/n (Poisson sampling); its gradient, of the mean loss over its own
tokens, is scaled to a norm of at most C; Gaussian noise of standard deviation σC is added to each coordinate of the
sum; the rest (division by b, the optimiser) is post-processing. For two member sets that differ in one *record*, added
or removed, what P releases is then (ε, δ)-differentially private with the ε that the accountant states for T-fold
composition of the Poisson-sampled Gaussian mechanism. Where *units* are protected, read unit for record and, for its
gradient, the mean of its records' gradients: n and b then count units, and a unit is one after near-duplicates are
merged, as a whole.

| case | what happens |
|---|---|
| a step samples no record | the noise alone is the step's gradient |
| the target lies between two searched σ | the larger σ, hence the smaller ε: the search ends on the private side |
| Opacus cannot tell the records of a model apart | a probe finds out; records are then taken one by one |
| n | is taken as public, as usual; so are b, T and C |

Not covered: losses reported on the members (so none are reported), the choice of settings by looking at results, other
records of the same person or unit, and attacks on floating-point arithmetic itself (Mironov 2012): noise is drawn from
63 random bits in double precision, and sums are rounded to single precision.

Randomness. Sampling and noise come from a `NoiseSource`: `SystemNoise`, the operating system's cryptographic generator,
which has no seed. A private training is therefore not repeatable, and one that is resumed draws fresh noise from where
it stopped; the steps that were lost were never released. `SeededNoise` is for tests: whoever knows the seed can
subtract the noise.

Shape suffixes: B records, n members.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reticent._validate import integer_in_range, open_probability, positive_finite
from reticent.errors import InvalidValueError, ModelError
from reticent.randomness import NoiseSource

_SIGMA_PRECISION = 1e-3
SMALLEST_SIGMA = 0.25
"""No less noise is searched: ε is then in the hundreds, which bounds nothing, and accounting takes ever longer."""
_LARGEST_SIGMA = 2.0**20
_NOISE_AT_ONCE = 1 << 22
_PROBE_TOLERANCE = 1e-3
_MISSING_EXTRA = "private training needs the packages opacus and dp-accounting; run `pip install 'reticent[dp]'`"


@dataclass(frozen=True)
class NoiseCalibration:
    """A noise multiplier and the privacy it gives.

    Attributes:
        noise_multiplier: σ, the noise's standard deviation over the clipping norm.
        sample_rate: q, the probability with which a member enters a step.
        num_steps: T.
        epsilon: the ε reached, at most the target.
        delta: its δ.
        accountant: the name of what states this ε.
    """

    noise_multiplier: float
    sample_rate: float
    num_steps: int
    epsilon: float
    delta: float
    accountant: str


def calibrate_noise(epsilon: float, delta: float, sample_rate: float, num_steps: int) -> NoiseCalibration:
    """The smallest noise multiplier, to within 0.1 % and not below `SMALLEST_SIGMA`, whose ε is at most `epsilon`.

    ε is the upper bound of dp-accounting's privacy-loss-distribution accountant (arXiv 2207.04380, pessimistic
    estimate) for records added or removed.

    Args:
        epsilon: target, in nats.
        delta: target.
        sample_rate: q in (0, 1].
        num_steps: T.

    Raises:
        InvalidValueError: an argument is outside its range, no noise reaches the target, or dp-accounting is missing.
    """
    positive_finite("epsilon", epsilon)
    open_probability("delta", delta)
    integer_in_range("num_steps", num_steps, 1)
    if not 0.0 < sample_rate <= 1.0:
        raise InvalidValueError(f"sample_rate must lie in (0, 1], got {sample_rate!r}")
    high = 1.0
    while epsilon_spent(high, delta, sample_rate, num_steps) > epsilon:
        high *= 2.0
        if high > _LARGEST_SIGMA:
            raise InvalidValueError(f"no noise multiplier up to {_LARGEST_SIGMA:g} reaches epsilon {epsilon!r}")
    low = high / 2.0
    while low >= SMALLEST_SIGMA and high <= 1.0 and epsilon_spent(low, delta, sample_rate, num_steps) <= epsilon:
        high, low = low, low / 2.0
    while high > SMALLEST_SIGMA and high - low > _SIGMA_PRECISION * high:
        middle = (low + high) / 2.0
        if epsilon_spent(middle, delta, sample_rate, num_steps) <= epsilon:
            high = middle
        else:
            low = middle
    reached = epsilon_spent(high, delta, sample_rate, num_steps)
    return NoiseCalibration(high, sample_rate, num_steps, reached, delta, _accountant_name())


def epsilon_spent(noise_multiplier: float, delta: float, sample_rate: float, num_steps: int) -> float:
    """Upper bound on ε, in nats, of T steps of the Poisson-sampled Gaussian mechanism; see `calibrate_noise`."""
    return float(_account_steps(noise_multiplier, sample_rate, num_steps).get_epsilon(delta))


def delta_spent(noise_multiplier: float, epsilon: float, sample_rate: float, num_steps: int) -> float:
    """Upper bound on δ at an ε ≥ 0 of the same; at ε = 0 it bounds the total variation between neighbours' outputs."""
    return float(_account_steps(noise_multiplier, sample_rate, num_steps).get_delta(epsilon))


def _account_steps(noise_multiplier: float, sample_rate: float, num_steps: int) -> Any:
    """Dp-accounting's accountant after T steps."""
    try:
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    except ImportError as error:
        raise InvalidValueError(_MISSING_EXTRA) from error
    step = dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(noise_multiplier))
    accountant = PLDAccountant(value_discretization_interval=_discretisation(noise_multiplier))
    return accountant.compose(dp_accounting.SelfComposedDpEvent(step, num_steps))


class PerRecordGradients:
    """Gradients of each record of a batch apart, through Opacus' hooks on a module's trainable parameters.

    Until `close` a backward pass of a *sum* of losses over records leaves each parameter's gradients of
    the batch's records, [B, *shape], in its `grad_sample`; `take` reads and clears them.

    Raises:
        InvalidValueError: Opacus is missing.
        ModelError: Opacus cannot hook a trainable part of this model.
    """

    def __init__(self, module: nn.Module) -> None:
        try:
            from opacus import GradSampleModule
        except ImportError as error:
            raise InvalidValueError(_MISSING_EXTRA) from error
        self._named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        try:
            self._hooked: Any = GradSampleModule(module, batch_first=True, loss_reduction="sum")
        except NotImplementedError as error:
            raise ModelError(f"a trained part of this model has buffers, which Opacus does not take: {error}") from None

    def take(self, num_records: int) -> list[Tensor]:
        """The gradients of the last backward pass, [B, *shape] for each trainable parameter, cleared.

        Raises:
            ModelError: a parameter has none, or not one for each record.
        """
        gradients = []
        for name, parameter in self._named.items():
            found = getattr(parameter, "grad_sample", None)
            if not isinstance(found, Tensor) or found.shape != (num_records, *parameter.shape):
                raise ModelError(f"the gradients of {name} do not come apart by record")
            parameter.grad_sample = None  # type: ignore[attr-defined]
            parameter.grad = None
            gradients.append(found)
        return gradients

    def close(self) -> None:
        """Take the hooks off, and what they keep."""
        module = self._hooked.to_standard_module()
        for part in module.modules():
            for name in ("activations", "max_batch_len"):
                part.__dict__.pop(name, None)


def backward(loss: Tensor) -> None:
    """Backward pass through hooked modules, without torch's notice that the first of them has no input to derive by."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss.backward()  # type: ignore[no-untyped-call]


def check_per_record_gradients(gradients: Sequence[Tensor], one_by_one: Sequence[Sequence[Tensor]]) -> None:
    """Compare per-record gradients with those of backward passes over one record each.

    Args:
        gradients: [B, *shape] for each parameter.
        one_by_one: for each record, its gradient for each parameter.

    Raises:
        ModelError: they differ, so clipping them would bound nothing.
    """
    for record, expected in enumerate(one_by_one):
        scale = _norm(expected)
        distance = _norm(g[record] - e for g, e in zip(gradients, expected, strict=True))
        if not distance <= _PROBE_TOLERANCE * max(scale, 1e-6):
            raise ModelError("Opacus' per-record gradients of this model are not those of its records")


def add_clipped(sums: Sequence[Tensor], gradients: Sequence[Tensor], max_norm: float) -> None:
    """Scale each record's gradient over all parameters to a norm of at most `max_norm` and add it to `sums` in place.

    Args:
        sums: one tensor for each parameter.
        gradients: [B, *shape] for each parameter, float32.
        max_norm: C.
    """
    norms_PB = torch.stack([torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients])
    norms_B = torch.linalg.vector_norm(norms_PB, dim=0)
    # The small addition keeps rounding from leaving a norm above C.
    factors_B = (max_norm / (norms_B * (1.0 + 1e-6) + 1e-12)).clamp(max=1.0)
    for total, gradient in zip(sums, gradients, strict=True):
        total += torch.tensordot(factors_B, gradient, dims=1)


def add_noise(sums: Sequence[Tensor], standard_deviation: float, noise: NoiseSource) -> None:
    """Add independent Gaussian noise to every coordinate in place, rounded once, to the sum's own precision."""
    for total in sums:
        flat = total.view(-1)
        for start in range(0, flat.numel(), _NOISE_AT_ONCE):
            part = flat[start : start + _NOISE_AT_ONCE]
            drawn = torch.from_numpy(noise.standard_normal(part.numel()) * standard_deviation)
            part.copy_((part.double() + drawn.to(part.device)).to(part.dtype))


def poisson_sample(num_records: int, sample_rate: float, noise: NoiseSource) -> NDArray[np.int64]:
    """The records of one step: each independently with probability `sample_rate`, int64[B], B ≥ 0."""
    return np.flatnonzero(noise.uniform(num_records) <= sample_rate)


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])))


def _discretisation(noise_multiplier: float) -> float:
    """Width of a cell of privacy loss, in nats: finer where much noise makes the loss of a step small."""
    return min(1e-3, 1e-2 / max(noise_multiplier, 1.0))


def _accountant_name() -> str:
    from importlib.metadata import version

    return (
        f"dp-accounting {version('dp-accounting')}, privacy loss distributions, upper bound, add-or-remove one record"
    )
