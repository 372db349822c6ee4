"""Waiting for what a server does after it has answered."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(find: Callable[[], T | None], seconds: float = 10.0) -> T:
    """The first value that is not None; fails where none comes in time."""
    deadline = time.monotonic() + seconds
    while (found := find()) is None:
        assert time.monotonic() < deadline, f"nothing came within {seconds} seconds"
        time.sleep(0.02)
    return found
