"""Range and shape checks.

Every check is written as `not lo <= x <= hi`, so that NaN fails, and every message names the argument and its value.
"""

import math
from collections.abc import Iterable
from numbers import Integral, Real

from reticent.errors import InvalidValueError


def positive_finite(name: str, value: float) -> float:
    """Return `value` as a float if 0 < value < inf; raise `InvalidValueError` otherwise."""
    if not isinstance(value, Real) or not 0.0 < value < math.inf:
        raise InvalidValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def non_negative_finite(name: str, value: float) -> float:
    """Return `value` as a float if 0 <= value < inf; raise `InvalidValueError` otherwise."""
    if not isinstance(value, Real) or not 0.0 <= value < math.inf:
        raise InvalidValueError(f"{name} must be a non-negative finite number, got {value!r}")
    return float(value)


def open_probability(name: str, value: float) -> float:
    """Return `value` as a float if 0 < value < 1; raise `InvalidValueError` otherwise."""
    if not isinstance(value, Real) or not 0.0 < value < 1.0:
        raise InvalidValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def integer_in_range(name: str, value: int, low: int, high: int | None = None) -> int:
    """Return `value` as an int if low <= value <= high (no upper limit where `high` is None)."""
    upper = math.inf if high is None else high
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= value <= upper:
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidValueError(f"{name} must be an integer {limits}, got {value!r}")
    return int(value)


def num_worlds(value: int) -> int:
    """Return `value` if it is an even integer of at least 2, as half of the worlds must hold each record."""
    integer_in_range("num_worlds", value, 2)
    if value % 2:
        raise InvalidValueError(
            f"num_worlds must be even, so that each record can be in exactly half of the worlds; got {value}"
        )
    return int(value)


def in_vocabulary(tokens: Iterable[int], vocab_size: int) -> None:
    """Raise `InvalidValueError` unless 0 <= token < vocab_size for every token of a prompt.

    A tokenizer may know tokens, added after training, that the model has no embedding for.
    """
    outside = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise InvalidValueError(f"prompt token {outside} is outside the vocabulary of {vocab_size} tokens")
