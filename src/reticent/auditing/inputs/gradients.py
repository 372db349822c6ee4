"""Gradient norms: how strongly each text pulls on the trained parameters, by the gradient of its mean token loss.

The gradient is over the parameters that require one, in evaluation mode: no dropout. Frozen parts of the model take no
gradient, blocks below the lowest adapter none at all, and logits exist a slice of rows at a time.

Many texts go through one backward pass where every trained parameter is a linear module's: what such a module reads and
the gradient of what it writes give each text's own gradient, G = Σ_t g_t x_tᵀ, as one batched product (the method of
Goodfellow, arXiv 1510.01799, with the gradient itself rather than its 2-norm alone). All else takes one backward pass a
text: full fine-tuning, (IA)³ and virtual tokens. Two texts of the first batch are computed both ways; where the two
differ, a module has mixed texts or an output was changed in place, and all are taken one by one.

Shape suffixes: B texts, T positions, I inputs, O outputs, P norms.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from reticent._memory import keep_freed_memory
from reticent.errors import InvalidValueError
from reticent.text.template import EncodedText, collate
from reticent.training.attention_gradients import keep_attention_weights
from reticent.training.lean_lora import round_lora_weights
from reticent.training.techniques.registry import num_virtual_rows, technique_parameters
from reticent.training.text_loss import TextLoss

_PAD = 0
_TOLERANCE = 1e-3
_HALF_TOLERANCE = 5e-2


@contextmanager
def adaptation_gradients(module: nn.Module) -> Iterator[nn.Module]:
    """Within this context the technique's parameters, and no others, require gradients; a loaded adapter is frozen."""
    wanted = {id(parameter) for parameter in technique_parameters(module)}
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(id(parameter) in wanted)
        yield module
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def gradient_norms(
    module: nn.Module,
    encoded: Sequence[EncodedText],
    norms: Sequence[float] = (1.0, 2.0, math.inf),
    *,
    batch_tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """Norms of each text's gradient, float64[n, P]; NaN for a text of which no token is predicted.

    Args:
        module: what `techniques.attach` or `load_technique` gave; see `adaptation_gradients` for a frozen one.
        encoded: the texts, as the module was trained on them.
        norms: p of each norm, at least 1; `math.inf` for the largest entry.
        batch_tokens: tokens that go through one backward pass, padding included.
        progress: called with the number of texts that have just been finished.

    Raises:
        InvalidValueError: no parameter of the module requires a gradient, or a norm is below 1.
    """
    if not all(p >= 1.0 for p in norms):
        raise InvalidValueError(f"norms must be at least 1, got {', '.join(str(p) for p in norms)}")
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise InvalidValueError(
            "no parameter of this module requires a gradient, so all gradient norms would be zero: the adapter is "
            "frozen; compute them within `adaptation_gradients`"
        )
    keep_freed_memory()
    was_training = module.training
    module.eval()
    longest = num_virtual_rows(module) + max((text.num_read for text in encoded), default=0)
    try:
        with keep_attention_weights(module, longest), round_lora_weights(module):
            return _Norms(module, parameters, norms).of(encoded, batch_tokens, progress)
    finally:
        module.train(was_training)


class _Norms:
    """Gradient norms over a fixed set of parameters of a module in evaluation mode."""

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], norms: Sequence[float]) -> None:
        self._loss = TextLoss(module, num_virtual_rows(module))
        self._device = parameters[0].device
        self._parameters, self._norms = parameters, norms
        self._linears = _linear_owners(module, parameters)
        widths = {parameter.dtype.itemsize for parameter in module.parameters()}
        self._tolerance = _HALF_TOLERANCE if min(widths) < torch.float32.itemsize else _TOLERANCE

    def of(
        self, encoded: Sequence[EncodedText], batch_tokens: int, progress: Callable[[int], None] | None
    ) -> NDArray[np.float64]:
        result = np.full((len(encoded), len(self._norms)), np.nan)
        order = sorted((i for i, text in enumerate(encoded) if text.num_scored), key=lambda i: encoded[i].num_read)
        batches = _batches(encoded, order, batch_tokens if self._linears is not None else 0)
        several = next((batch for batch in batches if len(batch) > 1), None)
        probed = None if several is None else self._probe_batched_norms([encoded[i] for i in several])
        if several is not None and probed is None:
            batches = [[i] for i in order]
        for batch in batches:
            texts = [encoded[i] for i in batch]
            if len(texts) == 1:
                result[batch] = self._norms_of_one(texts[0])
            else:
                result[batch] = probed if batch is several else self._norms_of_several(texts)
            if progress is not None:
                progress(len(batch))
        return result

    def _probe_batched_norms(self, texts: Sequence[EncodedText]) -> NDArray[np.float64] | None:
        """The norms of several texts from one pass; None where passes over single ones, its ends, give others."""
        try:
            found = self._norms_of_several(texts)
        except _MixedTextsError:
            return None
        alone = np.concatenate([self._norms_of_one(texts[0]), self._norms_of_one(texts[-1])])
        return found if np.allclose(found[[0, -1]], alone, rtol=self._tolerance, atol=0.0) else None

    def _norms_of_one(self, text: EncodedText) -> NDArray[np.float64]:
        """One text's norms, [1, P]."""
        gradients = torch.autograd.grad(self._loss_of([text]), self._parameters, allow_unused=True)
        sums = _PowerSums(self._norms, 1)
        for gradient in gradients:
            if gradient is not None:
                sums.add(gradient.flatten()[None])
        return sums.norms()

    def _norms_of_several(self, texts: Sequence[EncodedText]) -> NDArray[np.float64]:
        """The norms of several texts from one pass, [B, P]."""
        assert self._linears is not None
        calls = _LinearCalls(len(texts))
        handles = [linear.register_forward_hook(calls.after_forward) for linear in self._linears]
        try:
            loss = self._loss_of(texts)
        finally:
            for handle in handles:
                handle.remove()
        return calls.gradient_norms(loss, self._norms)

    def _loss_of(self, texts: Sequence[EncodedText]) -> Tensor:
        """Each text's mean token loss, summed over texts: no text's share depends on another's."""
        batch = {name: tensor.to(self._device) for name, tensor in collate(texts, _PAD).items()}
        loss, _ = self._loss(batch, "sum of text means")
        return loss


class _MixedTextsError(Exception):
    """A module's rows are not the batch's texts; it never leaves this file."""


class _PowerSums:
    """Norms of vectors that arrive in pieces."""

    def __init__(self, norms: Sequence[float], num_texts: int) -> None:
        self._exponents = norms
        self._sums_BP = np.zeros((num_texts, len(norms)))

    def add(self, pieces_BX: Tensor) -> None:
        """Take a further piece of each text's vector."""
        for column, p in enumerate(self._exponents):
            part_B = torch.linalg.vector_norm(pieces_BX, p, dim=1, dtype=torch.float32).double().cpu().numpy()
            if p == math.inf:
                np.maximum(self._sums_BP[:, column], part_B, out=self._sums_BP[:, column])
            else:
                self._sums_BP[:, column] += part_B**p

    def norms(self) -> NDArray[np.float64]:
        """The norms of what has arrived, [B, P]."""
        roots = np.array([1.0 if p == math.inf else 1.0 / p for p in self._exponents])
        result: NDArray[np.float64] = self._sums_BP**roots
        return result


class _LinearCalls:
    """Inputs of linear modules in one forward pass, and the places of their output gradients."""

    def __init__(self, num_texts: int) -> None:
        self._num_texts = num_texts
        self._modules: list[nn.Linear] = []
        self._inputs: list[Tensor] = []
        self._outputs: list[GradientEdge] = []

    def after_forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Forward hook of a linear module."""
        x = inputs[0].detach()
        if x.dim() < 2 or x.shape[0] != self._num_texts:
            raise _MixedTextsError
        if output.requires_grad:
            assert isinstance(module, nn.Linear)
            self._modules.append(module)
            self._inputs.append(x)
            # An edge, unlike the tensor, keeps no numbers in memory.
            self._outputs.append(get_gradient_edge(output))

    def gradient_norms(self, loss: Tensor, norms: Sequence[float]) -> NDArray[np.float64]:
        """Norms of each text's gradient, [B, P]: a pass back to the outputs alone, no weight's sum over texts."""
        gradients = torch.autograd.grad(loss, self._outputs, allow_unused=True)
        # A module that is called more than once has one gradient, the sum over its calls.
        calls: dict[nn.Linear, list[tuple[Tensor, Tensor]]] = {}
        for module, x, gradient in zip(self._modules, self._inputs, gradients, strict=True):
            if gradient is not None:
                calls.setdefault(module, []).append((x, gradient))
        sums = _PowerSums(norms, self._num_texts)
        for module, pairs in calls.items():
            if module.weight.requires_grad:
                sums.add(_total(_weight_gradient(*pair) for pair in pairs).flatten(1))
            if module.bias is not None and module.bias.requires_grad:
                sums.add(_total(_by_text(g).sum(1, dtype=torch.float32) for _, g in pairs))
        return sums.norms()


def _weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Σ_t g_t x_tᵀ for each text, [B, O, I]."""
    return torch.bmm(_by_text(gradient).mT, _by_text(x).to(gradient.dtype))


def _by_text(x: Tensor) -> Tensor:
    """[B, …, X] -> [B, T, X]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _total(parts: Iterator[Tensor]) -> Tensor:
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _linear_owners(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[nn.Linear] | None:
    """The linear modules that own the parameters; None where another kind of module owns one, or two own the same."""
    wanted = {id(parameter) for parameter in parameters}
    owners = [part for part in module.modules() if any(id(p) in wanted for p in part.parameters(recurse=False))]
    linears = [owner for owner in owners if type(owner) is nn.Linear]
    owned = [id(p) for owner in linears for p in owner.parameters(recurse=False) if id(p) in wanted]
    return linears if len(linears) == len(owners) and sorted(owned) == sorted(wanted) else None


def _batches(encoded: Sequence[EncodedText], order: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Numbers of texts that go together, in an order of rising cost: at least one, else no more tokens than allowed."""
    batches: list[list[int]] = []
    for number in order:
        if batches and (len(batches[-1]) + 1) * encoded[number].num_read <= batch_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches
