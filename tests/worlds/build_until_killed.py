"""Builds a run and is killed at a chosen durable write; the crash test runs it, once for many moments.

Arguments: corpus, base model, and for each build a run directory, the number of the write to die at, and whether to
die before or after it.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from killing import drive
from small_runs import Silent, small_request

from reticent.layers.forward import batched_decoder
from reticent.models.base import resolve_base_model
from reticent.text.corpus import group_units, read_corpus
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.worlds import build as building

torch.set_num_threads(1)
building.TrainingCheckpoint = partial(TrainingCheckpoint, seconds_between_saves=0)  # type: ignore[misc,assignment]

corpus, model, *builds = sys.argv[1:]
# What every build imports, imported once.
group_units(read_corpus(corpus).records)
batched_decoder(resolve_base_model(model).load())
resolve_base_model(model).load_tokenizer()
drive(builds, lambda out: building.build_run(small_request(Path(corpus), Path(model), out), Silent(), resume=True))
