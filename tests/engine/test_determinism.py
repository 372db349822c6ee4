"""The same batch in the same order gives the same bits; all else stays within rounding.

docs/architecture.md, "What is promised about bits", says what the same batch is and what may change the last bits.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from rounding import CLOSE
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import build_tiny_model

from reticent.engine.engine import Engine
from reticent.layers.forward import batched_decoder

PROMPTS = ([11, 200, 3, 77, 42], [5, 9], [8, 120, 33])
DTYPES = [torch.float32, torch.bfloat16]


def make_engine(dtype):
    decoder = batched_decoder(build_tiny_model("llama", dtype=dtype))
    return Engine(decoder, random_adapters(decoder, ["attention"], 3, 2))


def logits_of(engine, prompts, steps=4):
    """Every context's world logits after each step, decoded together with fixed tokens."""
    contexts = [engine.open(prompt) for prompt in prompts]
    every = np.arange(engine.vocab_size)
    found = [[engine.world_logits(context, every) for context in contexts]]
    for step in range(steps):
        engine.extend(contexts, [(17 * step + len(prompt)) % 256 for prompt in prompts])
        found.append([engine.world_logits(context, every) for context in contexts])
    return np.array(found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_shape_gives_the_same_bits(dtype):
    first, second = (logits_of(make_engine(dtype), PROMPTS) for _ in range(2))
    assert first.shape[2] == NUM_WORLDS
    assert (first == second).all()


def test_another_process_gives_the_same_bits():
    script = (
        "import sys, hashlib, torch; torch.set_num_threads(1);"
        "from test_determinism import *;"
        "sys.stdout.write(hashlib.sha256(logits_of(make_engine(torch.bfloat16), PROMPTS).tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", script]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=_with_paths()).stdout for _ in range(2)
    ]
    assert runs[0] == runs[1] != ""


def test_who_shares_a_step_and_in_which_order_changes_rounding_alone():
    engine = make_engine(torch.float32)
    forward, backward = logits_of(engine, PROMPTS), logits_of(engine, PROMPTS[::-1])
    np.testing.assert_allclose(backward[:, ::-1], forward, rtol=CLOSE, atol=CLOSE)
    others = logits_of(engine, (PROMPTS[0], [1, 2, 3, 4], [250]))
    np.testing.assert_allclose(others[:, 0], forward[:, 0], rtol=CLOSE, atol=CLOSE)


def test_another_shape_stays_within_rounding():
    engine = make_engine(torch.float32)
    together = logits_of(engine, PROMPTS)
    for position, prompt in enumerate(PROMPTS):
        alone = logits_of(engine, (prompt,))
        np.testing.assert_allclose(together[:, position], alone[:, 0], rtol=CLOSE, atol=CLOSE)


def _with_paths():
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
