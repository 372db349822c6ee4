"""Hidden states that enter the lowest adapted block, for every record: the same in all worlds, so computed once.

Shape suffixes: G worlds, B records, T tokens, D hidden size.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.errors import StorageError
from reticent.layers.forward import BatchedDecoder
from reticent.text.tokenise import EncodedTexts

_TOKENS_AT_ONCE = 4096


class FrozenTrunk:
    """Hidden states below the lowest adapter.

    With no frozen block this is the embedding, looked up as needed. Otherwise the states of all tokens are computed
    once into a scratch file that the operating system pages in and out, so memory does not grow with the corpus.
    """

    def __init__(self, decoder: BatchedDecoder, texts: EncodedTexts, num_blocks: int, scratch: Path) -> None:
        self._decoder = decoder
        self._texts = texts
        self._num_blocks = num_blocks
        self._scratch = scratch
        self._states_ND: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens that `compute` goes through: none where no block is frozen."""
        return len(self._texts.tokens) if self._num_blocks else 0

    @torch.no_grad()
    def compute(self, on_tokens: Callable[[int], None]) -> None:
        """Fill the scratch file; calls `on_tokens` with the number of tokens done since the last call.

        Raises:
            StorageError: the disk cannot hold the states.
        """
        if self._num_blocks == 0:
            return
        architecture = self._decoder.architecture
        shape = (self.num_tokens, architecture.hidden_size)
        try:
            with self._scratch.open("wb") as file:
                _reserve(file.fileno(), math.prod(shape) * architecture.dtype.itemsize)
            self._states_ND = torch.from_file(
                str(self._scratch), shared=True, size=math.prod(shape), dtype=architecture.dtype
            ).view(shape)
        except OSError as error:
            raise StorageError(f"cannot keep the lower layers' activations in {self._scratch}: {error}") from error
        finally:
            # The mapping keeps the space for as long as it is needed; a failure returns it immediately.
            self._scratch.unlink(missing_ok=True)
        by_length = np.argsort(self._texts.lengths, kind="stable")
        for records in _chunks_of_tokens(by_length, self._texts.lengths):
            self._compute_records(records)
            on_tokens(int(self._texts.lengths[records].sum()))

    def gather(self, records_GB: NDArray[np.int64], num_positions: int) -> Tensor:
        """Hidden states of the first `num_positions` tokens of some records, [G, B · T, D]; padding is arbitrary."""
        index_GBT = self.token_index(records_GB, num_positions)
        index = torch.from_numpy(index_GBT.reshape(len(records_GB), -1))
        device = self._decoder.architecture.device
        if self._num_blocks == 0:
            tokens = torch.from_numpy(self._texts.tokens[index.numpy()]).to(device)
            positions = torch.arange(num_positions, device=device).repeat(records_GB.shape[1])
            return self._decoder.embed(tokens, positions.expand_as(tokens))
        assert self._states_ND is not None, "compute() comes first"
        return self._states_ND[index].to(device)

    def token_index(self, records_GB: NDArray[np.int64], num_positions: int) -> NDArray[np.int64]:
        """Positions of the tokens of some records in the corpus, int64[G, B, T]; clipped where a record has ended."""
        first = self._texts.offsets[records_GB][..., None]
        last = self._texts.offsets[records_GB + 1][..., None] - 1
        # An absent record (−1) wraps around to a range that ends before it starts; clipping keeps it inside.
        index: NDArray[np.int64] = np.clip(first + np.arange(num_positions), 0, np.maximum(last, 0))
        return index

    def _compute_records(self, records_B: NDArray[np.int64]) -> None:
        assert self._states_ND is not None
        lengths = self._texts.lengths[records_B]
        num_positions = int(lengths.max())
        index_BT = self.token_index(records_B[None], num_positions)[0]
        device = self._decoder.architecture.device
        tokens = torch.from_numpy(self._texts.tokens[index_BT]).to(device)
        positions_T = torch.arange(num_positions, device=device)
        hidden_BTD = self._decoder.run_layers(
            self._decoder.embed(tokens, positions_T.expand_as(tokens)),
            range(self._num_blocks),
            positions_T,
            self._decoder.attention_over,
        )
        real = np.arange(num_positions) < lengths[:, None]
        self._states_ND[torch.from_numpy(index_BT[real])] = hidden_BTD[torch.from_numpy(real).to(device)].cpu()


def _reserve(descriptor: int, num_bytes: int) -> None:
    """Reserve a file's space: a full disk is an error here, but a fatal signal in a mapped file.

    macOS cannot reserve space; there the file gets its size alone.
    """
    fallocate: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)
    if fallocate is None:
        os.ftruncate(descriptor, num_bytes)
    else:
        fallocate(descriptor, 0, num_bytes)


def _chunks_of_tokens(records: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut records, ordered by length, into runs whose padded size is at most `_TOKENS_AT_ONCE` where possible."""
    chunks, start = [], 0
    while start < len(records):
        stop = start + 1
        while stop < len(records) and (stop + 1 - start) * lengths[records[stop]] <= _TOKENS_AT_ONCE:
            stop += 1
        chunks.append(records[start:stop])
        start = stop
    return chunks
