"""Adapts a model and is killed at a chosen durable write; the trainer's crash test runs it, once for many moments.

Arguments: corpus, base model, and for each training a folder, the number of the write to die at, and whether to die
before or after it. Each runs in a forked process of its own; prints how each one ended.
"""

import itertools
import os
import signal
import sys
from pathlib import Path

import torch
from small_adaptations import Recorder, small_request

from reticent.adaptation import trainer
from reticent.adaptation.splitting import split_records
from reticent.corpus import read_corpus
from reticent.models import resolve_base_model

torch.set_num_threads(1)


def adapt(corpus: Path, model: Path, out: Path, write_number: int, when: str) -> None:
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
    trainer._seconds_between_saves = lambda _: 0.0  # type: ignore[assignment]
    trainer.adapt(small_request(corpus, model, out), Recorder(), resume=True)


corpus, model, *trainings = sys.argv[1:]
# What every training imports, imported once.
split_records(read_corpus(corpus).records, small_request(Path(), Path(), Path()).split)
trainer.attach(resolve_base_model(model).load(), trainer.Technique.LORA, trainer.TechniqueSettings())
resolve_base_model(model).load_tokenizer()
for out, write_number, when in zip(trainings[::3], trainings[1::3], trainings[2::3], strict=True):
    child = os.fork()
    if child == 0:
        adapt(Path(corpus), Path(model), Path(out), int(write_number), when)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(out, "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else status, flush=True)
