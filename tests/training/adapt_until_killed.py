"""Adapts a model and is killed at a chosen durable write; the trainer's crash test runs it, once for many moments.

Arguments: corpus, base model, and for each training a folder, the number of the write to die at, and whether to die
before or after it.
"""

import sys
from pathlib import Path

import torch
from killing import drive
from small_adaptations import Recorder, small_request

from reticent.models.base import resolve_base_model
from reticent.text.corpus import read_corpus
from reticent.training import trainer
from reticent.training.splitting import split_records

torch.set_num_threads(1)
trainer._seconds_between_saves = lambda _: 0.0  # type: ignore[assignment]

corpus, model, *trainings = sys.argv[1:]
# What every training imports, imported once.
split_records(read_corpus(corpus).records, small_request(Path(), Path(), Path()).split)
trainer.attach(resolve_base_model(model).load(), trainer.Technique.LORA, trainer.TechniqueSettings())
resolve_base_model(model).load_tokenizer()
drive(trainings, lambda out: trainer.adapt(small_request(Path(corpus), Path(model), out), Recorder(), resume=True))
