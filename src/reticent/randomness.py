"""Sources of randomness: secret noise on one side, public coins on the other.

The two streams never meet. The secret S and the mechanism's noise come from a `NoiseSource`; in a deployment that is
`SystemNoise`, which reads the operating system's generator and cannot be seeded. The decoder's coins come from
`PublicCoins`, a pure function of a recorded key and a step, so that a third party can draw those of every vote again.

Contract:

* `SystemNoise` holds no state that could be copied, forked or replayed.
* `PublicCoins.gumbel(step, count)` depends on (key, step) only, and a longer draw begins with the shorter one.
* The coin stream is fixed: Philox-4x64-10, block i = 1, 2, ... of step t at counter words (i, 0, t, 0), least
  significant word first; the key is two little-endian 64-bit words; an output x gives the uniform
  (floor(x / 2^12) + 1/2) / 2^52, and u gives the Gumbel value -log(-log u). Changing any of this needs a new name.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError

KEY_BYTES = 16
_COIN_DOMAIN = b"reticent/public-coins/v1"
_UNIFORM_BYTES = 16


class NoiseSource(Protocol):
    """The secret randomness of a mechanism."""

    is_secure: ClassVar[bool]
    """Whether the stream is unpredictable; a deployment refuses a source for which this is not `True`."""

    def standard_normal(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent standard normal values, float64[count]."""
        ...

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent uniforms in (0, 1], float64[count], with full relative precision near 0."""
        ...

    def secret_index(self, num_worlds: int) -> int:
        """Return an index drawn uniformly, without modulo bias, from [0, num_worlds)."""
        ...


class BitSource(Protocol):
    """The secret randomness of a draw among whole numbers."""

    is_secure: ClassVar[bool]
    """Whether the stream is unpredictable; a deployment refuses a source for which this is not `True`."""

    def secret_bits(self, count: int) -> int:
        """Return an integer drawn uniformly from [0, 2^count)."""
        ...


class SystemNoise:
    """The operating system's cryptographic generator. It has no seed and no state."""

    is_secure: ClassVar[bool] = True

    def standard_normal(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent standard normal values by inverting the distribution function.

        Of 64 random bits one is the sign and 63 make a uniform in (0, 1/2], so both tails are alike and reach beyond
        9 standard deviations; inverting a uniform near 1 would lose the upper tail to rounding.
        """
        signed = np.frombuffer(os.urandom(8 * count), dtype=np.int64) + 0.5
        normals: NDArray[np.float64] = np.copysign(ndtri(np.abs(signed) * 2.0**-64), signed)
        return normals

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent uniforms in (0, 1], each from 128 random bits."""
        return _uniforms(os.urandom(_UNIFORM_BYTES * count))

    def secret_index(self, num_worlds: int) -> int:
        """Return an index drawn uniformly from [0, num_worlds)."""
        return secrets.randbelow(integer_in_range("num_worlds", num_worlds, 1))

    def secret_bits(self, count: int) -> int:
        """Return an integer drawn uniformly from [0, 2^count)."""
        return secrets.randbits(integer_in_range("count", count, 1))


class SeededNoise:
    """A repeatable stream for tests and experiments only: whoever knows the seed knows S. A deployment refuses it."""

    is_secure: ClassVar[bool] = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(integer_in_range("seed", seed, 0)))

    def standard_normal(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent standard normal values, float64[count]."""
        return self._generator.standard_normal(count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return `count` independent uniforms in (0, 1], each from 128 random bits."""
        return _uniforms(self._generator.bytes(_UNIFORM_BYTES * count))

    def secret_index(self, num_worlds: int) -> int:
        """Return an index drawn uniformly from [0, num_worlds)."""
        return int(self._generator.integers(integer_in_range("num_worlds", num_worlds, 1)))

    def secret_bits(self, count: int) -> int:
        """Return an integer drawn uniformly from [0, 2^count)."""
        num_bytes = -(-integer_in_range("count", count, 1) // 8)
        return int.from_bytes(self._generator.bytes(num_bytes), "big") >> (8 * num_bytes - count)


@dataclass(frozen=True, slots=True)
class PublicCoins:
    """The public coins of one request: one key, one independent stream a step.

    Attributes:
        key: 16 bytes, public, recorded with the request. No two requests may share one.

    Raises:
        InvalidValueError: the key is not 16 bytes.
    """

    key: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != KEY_BYTES:
            raise InvalidValueError(f"a coin key must be {KEY_BYTES} bytes, got {self.key!r}")

    @classmethod
    def fresh(cls) -> "PublicCoins":
        """Return coins under a new key from the operating system."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int, request: int) -> "PublicCoins":
        """Return the coins of request number `request` under a public seed (both non-negative)."""
        integer_in_range("seed", seed, 0)
        integer_in_range("request", request, 0)
        digest = hashlib.sha256(b"%s:%d:%d" % (_COIN_DOMAIN, seed, request)).digest()
        return cls(digest[:KEY_BYTES])

    def uniform(self, step: int, count: int) -> NDArray[np.float64]:
        """Return the first `count` uniforms of a step, strictly inside (0, 1), float64[count]."""
        integer_in_range("step", step, 0, 2**64 - 1)
        counter = np.array([0, 0, step, 0], dtype=np.uint64)
        stream = np.random.Philox(counter=counter, key=np.frombuffer(self.key, dtype="<u8"))
        bits: NDArray[np.uint64] = stream.random_raw(count)
        return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def gumbel(self, step: int, count: int) -> NDArray[np.float64]:
        """Return the first `count` standard Gumbel values of a step, float64[count]."""
        values: NDArray[np.float64] = -np.log(-np.log(self.uniform(step, count)))
        return values


def _uniforms(random_bytes: bytes) -> NDArray[np.float64]:
    """Uniforms in (0, 1], each from two 64-bit words: P(u ≤ x) is x to a relative 2^-52 for every x above 2^-76."""
    words = np.frombuffer(random_bytes, dtype=np.uint64).reshape(-1, 2).astype(np.float64)
    values: NDArray[np.float64] = (words[:, 0] + (words[:, 1] + 0.5) * 2.0**-64) * 2.0**-64
    return values
