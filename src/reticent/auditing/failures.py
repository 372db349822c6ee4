"""The reason why part of an audit has no result, from what that part raised."""

import traceback
from pathlib import Path

from reticent.errors import ReticentError

_PACKAGE = Path(__file__).parents[1]


def describe_failure(error: Exception) -> str:
    """The message of an error that is meant to be read; of any other its kind and place alone.

    What a library says of a failure may quote the text that it failed on.
    """
    if isinstance(error, ReticentError):
        return str(error)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _PACKAGE in Path(frame.filename).parents]
    place = ""
    if own:
        module = ".".join(Path(own[-1].filename).relative_to(_PACKAGE).with_suffix("").parts)
        place = f" in {module}.{own[-1].name}, line {own[-1].lineno}"
    return f"this model cannot be asked that way ({type(error).__name__}{place})"
