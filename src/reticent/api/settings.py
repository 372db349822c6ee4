"""Settings as a caller writes them: names of types and of members of closed sets, checked."""

from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from reticent.errors import InvalidValueError

if TYPE_CHECKING:
    import torch

DTypeName = Literal["float32", "bfloat16"]
"""Types to compute in."""

E = TypeVar("E", bound=StrEnum)


def parse_choice(name: str, kind: type[E], value: E | str) -> E:
    """Return the member of a closed set that a value names.

    Raises:
        InvalidValueError: there is no such member; the message names those there are.
    """
    try:
        return kind(value)
    except ValueError:
        raise InvalidValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from None


def torch_dtype(name: DTypeName | None) -> "torch.dtype | None":
    """Return the type of a name; None for none.

    Raises:
        InvalidValueError: another name.
    """
    import torch

    if name is None:
        return None
    if name not in get_args(DTypeName):
        raise InvalidValueError(f"dtype must be one of {', '.join(get_args(DTypeName))}, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
