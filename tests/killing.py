"""Work that dies at a chosen durable write: what the crash tests of long work share.

A driver is a program of its own: it imports what its work needs once, and then does the work in a forked process for
each moment, so that dozens of moments cost one start.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

Moment = tuple[int, str]
"""The number of a durable write, from 1, and whether the work dies "before" or "after" it."""


def die_at(write_number: int, when: str) -> None:
    """Let this process die by SIGKILL around the n-th time that a file is moved into place."""
    count = itertools.count(1)
    replace = Path.replace

    def replace_or_die(self: Path, target: Path) -> Path:
        last = next(count) == write_number
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        moved = replace(self, target)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    Path.replace = replace_or_die  # type: ignore[method-assign]


def drive(arguments: Sequence[str], work: Callable[[Path], None]) -> None:
    """Of a driver: work on each folder, to die at its moment, and print how each ended.

    Args:
        arguments: folder, number of the write and when, for each piece of work.
        work: works on a folder.
    """
    for out, write_number, when in zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True):
        child = os.fork()
        if child == 0:
            die_at(int(write_number), when)
            work(Path(out))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(out, "killed" if killed else status, flush=True)


def killed_at(driver: Path, folder: Path, moments: Sequence[Moment], *arguments: object) -> dict[Moment, Path]:
    """Run a driver for all moments and return the folder that each left behind.

    Args:
        driver: its program.
        folder: where the folders go.
        moments: when to die.
        arguments: what the driver takes before the moments.
    """
    outs = {moment: folder / f"{moment[0]}-{moment[1]}" for moment in moments}
    places = [str(part) for (number, when), out in outs.items() for part in (out, number, when)]
    ended = subprocess.run(
        [sys.executable, driver, *map(str, arguments), *places],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert ended.stdout.split() == [word for out in outs.values() for word in (str(out), "killed")]
    return outs
