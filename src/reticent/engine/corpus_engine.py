"""The engine of the corpus guarantee: the sum of all worlds' integer votes, where no world feels another.

For one history everything it computes has a shape from public numbers. The public row goes through the blocks in passes
of its own; all worlds, the empty ones too, go through them together in a fixed order; nothing looks at what a world
holds. So a world's integer votes follow from its own adapter, whatever the others are, on one machine with one number
of threads. `require_isolation` tries that on the device in use, with numbers that are not finite in one world after
another; a device on which another world's votes move is refused.

Shape suffixes: M worlds, K candidates.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from reticent.decoding.logit_votes import aggregates_from_logits, cast_integer_votes
from reticent.dp.release import Aggregate, CorpusSettings
from reticent.engine.engine import Engine, EngineContext
from reticent.errors import InvalidValueError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import BatchedDecoder

_PROBE_TOKENS = 6
_PROBE_CANDIDATES = 64


class CorpusEngine(Engine):
    """Implements `reticent.decoding.aggregates.AggregateEngine`.

    Args:
        decoder: the base.
        adapters: the worlds'.
        occupied_M: whether any place of a world is taken, bool[M]; private.

    Raises:
        InvalidValueError: there is not one flag a world.
    """

    _public_apart = True

    def __init__(self, decoder: BatchedDecoder, adapters: StackedAdapters, occupied_M: NDArray[np.bool_]) -> None:
        # A captured graph is kept or dropped by what came before; shapes alone must decide what is computed.
        super().__init__(decoder, adapters, capture_graphs=False)
        if occupied_M.shape != (self.num_worlds,):
            raise InvalidValueError(f"{self.num_worlds} worlds need one flag each, got {occupied_M.shape}")
        self._occupied_M = occupied_M

    def aggregates(self, contexts: Sequence[EngineContext], settings: CorpusSettings) -> list[Aggregate | Exception]:
        """Add up all worlds' integer votes for the next token of each context, or say why there are none."""
        return aggregates_from_logits(self, contexts, settings, self._occupied_M)


def require_isolation(decoder: BatchedDecoder, adapters: StackedAdapters, clip: float) -> None:
    """Check on the device in use that no world's integer votes move when another world's numbers do.

    One world after another, the first, one in the middle and the last, is given numbers that are none, and its own
    back afterwards.

    Args:
        decoder: the base.
        adapters: the worlds'.
        clip: c, in nats.

    Raises:
        InvalidValueError: votes moved; the device cannot carry the guarantee.
    """
    num_worlds = adapters.num_adapters
    plain_SMK = _probe(decoder, adapters, clip)
    for world in sorted({0, num_worlds // 2, num_worlds - 1}):
        with _replaced(adapters, world, float("nan")):
            found_SMK = _probe(decoder, adapters, clip)
        others_M = np.arange(num_worlds) != world
        if not np.array_equal(found_SMK[:, others_M], plain_SMK[:, others_M]):
            raise InvalidValueError(
                f"on {decoder.architecture.device} the votes of a world depend on other worlds, so the guarantee would "
                "not hold; compute on another device"
            )


def _probe(decoder: BatchedDecoder, adapters: StackedAdapters, clip: float) -> NDArray[np.int64]:
    """Every world's integer votes after a prompt and after one more token, int64[2, M, K]."""
    occupied_M = np.ones(adapters.num_adapters, dtype=np.bool_)
    engine = CorpusEngine(decoder, adapters, occupied_M)
    count = min(_PROBE_CANDIDATES, engine.vocab_size)
    tokens = [token % engine.vocab_size for token in range(_PROBE_TOKENS)]
    context = engine.open(tokens[:-1])
    before = cast_integer_votes(engine, context, count, clip, occupied_M)
    engine.extend([context], tokens[-1:])
    after = cast_integer_votes(engine, context, count, clip, occupied_M)
    return np.stack([before.votes_MK, after.votes_MK])


@contextmanager
def _replaced(adapters: StackedAdapters, world: int, number: float) -> Iterator[None]:
    """One world's numbers all replaced, in place, for as long as the context lasts."""
    tensors = (*adapters.down.values(), *adapters.up.values())
    kept = [tensor[world].clone() for tensor in tensors]
    try:
        for tensor in tensors:
            tensor[world] = number
        yield
    finally:
        for tensor, own in zip(tensors, kept, strict=True):
            tensor[world] = own
