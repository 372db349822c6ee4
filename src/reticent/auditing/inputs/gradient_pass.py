"""Gradient norms of many texts, kept on disk as they are computed, so that a killed pass resumes where it stopped."""

from collections.abc import Callable, Sequence

from torch import nn

from reticent.auditing.inputs.gradients import adaptation_gradients, gradient_norms
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.targets.scoring import ModelScorer
from reticent.text.corpus import text_hash

_TEXTS_AT_ONCE = 64
_NORM = 2.0


def cached_gradient_norms(
    module: nn.Module,
    scorer: ModelScorer,
    texts: Sequence[str],
    store: TextStore,
    progress: Callable[[int], None],
) -> dict[str, float]:
    """2-norm of each text's gradient over the technique's parameters, by hash; texts without a scored token are absent.

    Args:
        module: the adapted module; frozen parameters of the technique take gradients for the time of the call.
        scorer: encodes texts as the module was trained on them.
        texts: the texts.
        store: what is known already, and where new norms are kept; it must belong to this module.
        progress: called with the number of texts that have just become known.

    Raises:
        StorageError: the store cannot be written.
    """
    distinct = {text_hash(text): text for text in texts}
    held = store.read()
    known = {key: float(held[key]) for key in distinct if key in held}
    if known:
        progress(len(known))
    missing = sorted((key for key in distinct if key not in known), key=lambda key: len(distinct[key]))
    with adaptation_gradients(module):
        for start in range(0, len(missing), _TEXTS_AT_ONCE):
            keys = missing[start : start + _TEXTS_AT_ONCE]
            encoded = scorer.encode([distinct[key] for key in keys])
            norms = gradient_norms(module, encoded, (_NORM,), progress=progress)[:, 0].tolist()
            found = {key: norm for key, norm, text in zip(keys, norms, encoded, strict=True) if text.num_scored}
            store.add(found)
            known |= found
    return known
