"""Base classes of settings and records that pydantic checks, and refusals of settings in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pydantic

from reticent.errors import InvalidValueError


class FrozenModel(pydantic.BaseModel):
    """Settings or a record that never change once made; a field that is not declared is refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class FiniteModel(FrozenModel):
    """A frozen model of finite numbers alone, so that it goes to JSON and back unchanged."""

    model_config = pydantic.ConfigDict(allow_inf_nan=False)


@contextmanager
def readable_settings(of: str = "") -> Iterator[None]:
    """Say the first thing that pydantic finds wrong with a setting, as one line.

    Args:
        of: what the settings belong to, where their names alone do not say it.

    Raises:
        InvalidValueError: a setting is outside its range; the message names it and its value.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        named = f"{problem['loc'][0]}: {problem['msg']}, got {problem['input']!r}" if problem["loc"] else problem["msg"]
        raise InvalidValueError(f"{of}: {named}" if of else named) from None
