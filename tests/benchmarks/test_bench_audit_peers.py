"""The audit's peer computes what it is asked for and nothing it throws away."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.audit_peers import logp_behind_prefix, signals_of_text
from benchmarks.workspace import SMOKE, Workspace


def test_behind_a_prefix_the_peer_computes_the_texts_logits_alone(tiny_llama_folder: Path, tmp_path: Path) -> None:
    workspace = Workspace(str(tiny_llama_folder), torch.float32, torch.device("cpu"), SMOKE, tmp_path, smoke=True)
    prefix, ids = (np.array(workspace.prompt(length, length)) for length in (5, 7))
    shapes: list[Any] = []
    workspace.model.lm_head.register_forward_hook(lambda _module, _inputs, out: shapes.append(out.shape[:2]))
    found = logp_behind_prefix(workspace.model, prefix, ids)
    assert shapes == [(1, 7)]
    whole = signals_of_text(workspace.model, np.concatenate([prefix, ids]))
    np.testing.assert_allclose(found, whole[0, 5:], atol=1e-5)
