"""Keys and values of one block for one context.

Shape suffixes: G rows, N new tokens, T positions, H key-value heads, C head dimension.
"""

from torch import Tensor


class LayerCache:
    """Keys and values, grown by whole blocks of positions so that memory stays close to what is held."""

    def __init__(self, block: int) -> None:
        self._block = block
        self.key_GTHC: Tensor | None = None
        self.value_GTHC: Tensor | None = None

    @property
    def capacity(self) -> int:
        """How many positions there is room for."""
        return 0 if self.key_GTHC is None else self.key_GTHC.shape[1]

    def append(self, cached_len: int, key_GNHC: Tensor, value_GNHC: Tensor) -> tuple[Tensor, Tensor]:
        """Store new positions after the first `cached_len` and return all, [G, cached_len + N, H, C]."""
        stop = cached_len + key_GNHC.shape[1]
        self.key_GTHC = self._grown(self.key_GTHC, cached_len, key_GNHC, stop)
        self.value_GTHC = self._grown(self.value_GTHC, cached_len, value_GNHC, stop)
        self.key_GTHC[:, cached_len:stop] = key_GNHC
        self.value_GTHC[:, cached_len:stop] = value_GNHC
        return self.key_GTHC[:, :stop], self.value_GTHC[:, :stop]

    def store_rows(self, first_row: int, num_rows: int, key_GNHC: Tensor, value_GNHC: Tensor) -> None:
        """Store the first N positions of some consecutive rows, in place, in a cache of `num_rows` rows."""
        num_tokens, last_row = key_GNHC.shape[1], first_row + key_GNHC.shape[0]
        if self.key_GTHC is None or self.value_GTHC is None:
            self.key_GTHC = self._grown(None, 0, key_GNHC[:1].expand(num_rows, -1, -1, -1), num_tokens)
            self.value_GTHC = self._grown(None, 0, value_GNHC[:1].expand(num_rows, -1, -1, -1), num_tokens)
        self.key_GTHC[first_row:last_row, :num_tokens] = key_GNHC
        self.value_GTHC[first_row:last_row, :num_tokens] = value_GNHC

    def reserve(self, cached_len: int) -> None:
        """Make room for one more position after the first `cached_len`; the cache must have been filled before."""
        assert self.key_GTHC is not None
        assert self.value_GTHC is not None
        self.key_GTHC = self._grown(self.key_GTHC, cached_len, self.key_GTHC, cached_len + 1)
        self.value_GTHC = self._grown(self.value_GTHC, cached_len, self.value_GTHC, cached_len + 1)

    def store_at(self, position: Tensor, key_G1HC: Tensor, value_G1HC: Tensor) -> tuple[Tensor, Tensor]:
        """Store one position, given as a tensor int64[1], and return the whole room, [G, T, H, C]."""
        assert self.key_GTHC is not None
        assert self.value_GTHC is not None
        self.key_GTHC.index_copy_(1, position, key_G1HC)
        self.value_GTHC.index_copy_(1, position, value_G1HC)
        return self.key_GTHC, self.value_GTHC

    def _grown(self, cache: Tensor | None, used: int, like: Tensor, needed: int) -> Tensor:
        if cache is not None and cache.shape[1] >= needed:
            return cache
        capacity = -(-needed // self._block) * self._block
        # Zeros, not leftovers: a masked position must not bring NaN into a sum.
        larger = like.new_zeros(like.shape[0], capacity, *like.shape[2:])
        if cache is not None:
            larger[:, :used] = cache[:, :used]
        return larger
