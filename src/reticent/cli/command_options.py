"""Commands that take one typed object of options in place of a long list of parameters, and lists in an option."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def takes_options(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Turn a function of an options object into a command: each field of the dataclass is an argument or an option.

    Args:
        kind: a frozen dataclass whose fields are annotated as the parameters of a Typer command are; a field's default
            is the option's.
    """

    def make_command(act: Callable[[T], None]) -> Callable[..., None]:
        @wraps(act)
        def command(*arguments: Any, **options: Any) -> None:
            act(kind(*arguments, **options))

        command.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
        command.__annotations__ = get_type_hints(kind, include_extras=True)
        return command

    return make_command


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
