"""Room on a disk: whether a folder takes more bytes now."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

# More than a commit of a full batch writes.
ROOM_BYTES: Final = 1 << 18
_LASTS_SECONDS: Final = 1.0


class DiskRoom:
    """Finds out by writing: free blocks, quotas, limits on files and a file system gone read-only all count.

    The bytes go to a nameless file that is gone at once. Once they found room, they are not written again for a second,
    so that whoever may ask cannot keep the disk busy. Safe to use from several threads.

    Args:
        folder: where to write.
        clock: seconds, monotonic.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._found_at = -float("inf")

    def is_there(self) -> bool:
        """True if 256 KiB can be written durably, now or a second ago."""
        with self._lock:
            if self._clock() - self._found_at < _LASTS_SECONDS:
                return True
            try:
                with tempfile.TemporaryFile(dir=self._folder, buffering=0) as scratch:
                    # Random bytes, which no file system compresses.
                    if scratch.write(os.urandom(ROOM_BYTES)) != ROOM_BYTES:
                        return False
                    os.fsync(scratch.fileno())
            except OSError:
                return False
            self._found_at = self._clock()
            return True
