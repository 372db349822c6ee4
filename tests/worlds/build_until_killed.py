"""Builds a run and is killed at a chosen durable write; the crash test runs it, once for many moments.

Arguments: corpus, base model, and for each build a run directory, the number of the write to die at, and whether to
die before or after it. Each build runs in a forked process of its own; prints how each one ended.
"""

import itertools
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from small_runs import Silent, small_request

from reticent.adaptation.checkpoint import Checkpoint
from reticent.corpus import group_units, read_corpus
from reticent.ensemble.forward import batched_decoder
from reticent.models import resolve_base_model
from reticent.worlds import building

torch.set_num_threads(1)


def build(corpus: Path, model: Path, out: Path, write_number: int, when: str) -> None:
    """Die by SIGKILL around the n-th time a file is moved into place."""
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
    building.Checkpoint = partial(Checkpoint, seconds_between_saves=0)  # type: ignore[misc,assignment]
    building.build_run(small_request(corpus, model, out), Silent(), resume=True)


corpus, model, *builds = sys.argv[1:]
# What every build imports, imported once.
group_units(read_corpus(corpus).records)
batched_decoder(resolve_base_model(model).load())
resolve_base_model(model).load_tokenizer()
for out, write_number, when in zip(builds[::3], builds[1::3], builds[2::3], strict=True):
    child = os.fork()
    if child == 0:
        build(Path(corpus), Path(model), Path(out), int(write_number), when)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(out, "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else status, flush=True)
