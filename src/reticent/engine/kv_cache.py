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
        """The number of positions there is room for."""
        return 0 if self.key_GTHC is None else self.key_GTHC.shape[1]

    def append(
        self, cached_len: int, key_GNHC: Tensor, value_GNHC: Tensor, first_row: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Store new positions of some rows after the first `cached_len`, and return all positions of these rows.

        Returns:
            Keys and values, [G, cached_len + N, H, C].
        """
        rows, stop = slice(first_row, first_row + key_GNHC.shape[0]), cached_len + key_GNHC.shape[1]
        self.key_GTHC = self._grow(self.key_GTHC, cached_len, key_GNHC, stop)
        self.value_GTHC = self._grow(self.value_GTHC, cached_len, value_GNHC, stop)
        self.key_GTHC[rows, cached_len:stop] = key_GNHC
        self.value_GTHC[rows, cached_len:stop] = value_GNHC
        return self.key_GTHC[rows, :stop], self.value_GTHC[rows, :stop]

    def store_rows(self, first_row: int, num_rows: int, key_GNHC: Tensor, value_GNHC: Tensor) -> None:
        """Store the first N positions of some consecutive rows, in place, in a cache of `num_rows` rows."""
        num_tokens, last_row = key_GNHC.shape[1], first_row + key_GNHC.shape[0]
        if self.key_GTHC is None or self.value_GTHC is None:
            self.key_GTHC = self._grow(None, 0, key_GNHC[:1].expand(num_rows, -1, -1, -1), num_tokens)
            self.value_GTHC = self._grow(None, 0, value_GNHC[:1].expand(num_rows, -1, -1, -1), num_tokens)
        self.key_GTHC[first_row:last_row, :num_tokens] = key_GNHC
        self.value_GTHC[first_row:last_row, :num_tokens] = value_GNHC

    def reserve(self, cached_len: int, count: int) -> None:
        """Make room for some more positions after the first `cached_len`; the cache must have been filled before."""
        assert self.key_GTHC is not None
        assert self.value_GTHC is not None
        self.key_GTHC = self._grow(self.key_GTHC, cached_len, self.key_GTHC, cached_len + count)
        self.value_GTHC = self._grow(self.value_GTHC, cached_len, self.value_GTHC, cached_len + count)

    def store_at(self, positions_N: Tensor, key_GNHC: Tensor, value_GNHC: Tensor) -> tuple[Tensor, Tensor]:
        """Store the first rows at positions given as a tensor, and return their whole room, [G, T, H, C]."""
        assert self.key_GTHC is not None
        assert self.value_GTHC is not None
        num_rows = key_GNHC.shape[0]
        keys, values = self.key_GTHC[:num_rows], self.value_GTHC[:num_rows]
        keys.index_copy_(1, positions_N, key_GNHC)
        values.index_copy_(1, positions_N, value_GNHC)
        return keys, values

    def _grow(self, cache: Tensor | None, used: int, like: Tensor, needed: int) -> Tensor:
        if cache is not None and cache.shape[1] >= needed:
            return cache
        capacity = -(-needed // self._block) * self._block
        # Zeros, not leftovers: a masked position must not bring NaN into a sum.
        num_rows = like.shape[0] if cache is None else cache.shape[0]
        larger = like.new_zeros(num_rows, capacity, *like.shape[2:])
        if cache is not None:
            larger[:, :used] = cache[:, :used]
        return larger
