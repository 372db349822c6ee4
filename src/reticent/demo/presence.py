"""Presence in the corpus, attacked where nothing protects it: the reference attack on the adapter of all letters.

Each text's score is its mean log-probability under that adapter less that under the public model. The deployment's
guarantee does not bound this secret; see `docs/guarantee.md`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from reticent.auditing.metrics import auc, bootstrap_auc_interval
from reticent.demo.settings import MAX_TOKENS, DemoFolder
from reticent.engine.world_scoring import WorldScorer
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE
from reticent.text.template import TextTemplate
from reticent.worlds.manifest import FULL_NAME
from reticent.worlds.run_directory import RunDirectory


def measure_presence(folder: DemoFolder, members: Sequence[str], nonmembers: Sequence[str], seed: int) -> Estimate:
    """Measure the AUC with which members are told from non-members by the unprotected adapter."""
    scores = _reference_scores(folder, [*members, *nonmembers])
    inside, outside = scores[: len(members)], scores[len(members) :]
    low, high = bootstrap_auc_interval(inside, outside, seed, CONFIDENCE)
    return Estimate(value=auc(inside, outside), low=low, high=high, confidence=CONFIDENCE)


def _reference_scores(folder: DemoFolder, texts: Sequence[str]) -> NDArray[np.float64]:
    """Mean log-probability of each text, adapted less public, in nats a token, float64[texts]."""
    run = RunDirectory.open(folder.run)
    base = run.base()
    adapters = _beside_base(run.full())
    template = TextTemplate(max_tokens=MAX_TOKENS)
    fingerprint = run.manifest.files[FULL_NAME]
    scorer = WorldScorer(batched_decoder(base.load(run.dtype)), adapters, base.load_tokenizer(), template, fingerprint)
    adapted_T, public_T = scorer.mean_logps(texts).T
    difference_T: NDArray[np.float64] = adapted_T - public_T
    return difference_T


def _beside_base(adapter: StackedAdapters) -> StackedAdapters:
    """The adapter, and a second one that changes nothing: the base."""
    return StackedAdapters(
        {path: torch.cat([tensor, tensor]) for path, tensor in adapter.down.items()},
        {path: torch.cat([tensor, torch.zeros_like(tensor)]) for path, tensor in adapter.up.items()},
        adapter.alpha,
    )
