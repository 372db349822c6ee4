"""A world of a run directory as the target of an audit, with the other worlds as its shadow models.

The world is exported as a PEFT folder into the cache, so that every attack sees an ordinary model; the other
worlds' signals for each text come from the ensemble's batched pass and are cached text by text. Nothing here reads a
deployment's ledger: which world was realised stays unknown.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.inputs.shadows import ShadowTable
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target, TargetKind, TargetOptions, open_target
from reticent.engine.world_scoring import WorldScorer
from reticent.errors import InvalidValueError, RunDirectoryError
from reticent.layers.forward import batched_decoder
from reticent.models.base import usable_device
from reticent.protocols import Progress
from reticent.text.corpus import text_hash
from reticent.worlds.manifest import WORLDS_NAME
from reticent.worlds.peft_exchange import ADAPTER_WEIGHTS_NAME, export_world
from reticent.worlds.run_directory import RunDirectory

_TEXTS_AT_ONCE = 64


def open_world(folder: Path, world: int, options: TargetOptions, cache: Path, progress: Progress) -> Target:
    """Open one world of a run.

    Args:
        folder: the run directory.
        world: which world, from 0.
        options: how; template and type default to the run's own.
        cache: where the exported adapter and the worlds' means are kept.
        progress: reports the shadows' pass.

    Raises:
        InvalidValueError: there is no such world.
        RunDirectoryError: the run is damaged, of another base, or does not say which texts its worlds hold.
    """
    run = RunDirectory.open(folder)
    num_worlds = run.manifest.num_worlds
    if not 0 <= world < num_worlds:
        raise InvalidValueError(f"world must lie between 0 and {num_worlds - 1}, got {world}")
    membership = run.membership()
    if not membership.record_hashes.any():
        raise RunDirectoryError(f"{folder} was imported without its texts' hashes, so nobody can say who is a member")
    hashes = [bytes(row).hex() for row in membership.record_hashes]
    members_of = dict(zip(hashes, membership.record_members, strict=True))
    identity = run.manifest.files[WORLDS_NAME][:32]
    adapter = _export_adapter(run, world, cache / "worlds" / f"{identity}-{world}", options.model)
    chosen = replace(
        options,
        template=_template(run) | options.template,
        model=options.model or run.manifest.base.name,
        dtype=options.dtype or run.dtype,
    )
    target = open_target(str(adapter), chosen)
    record = {"kind": TargetKind.RUN.value, "name": str(folder), "world": world, "worlds": num_worlds}
    store = TextStore(cache / "worlds" / f"{identity}-{target.scorer.fingerprint[:16]}.jsonl")

    def shadow_table(texts: Sequence[str]) -> ShadowTable:
        means_NM = _means(run, target, options, store, texts, progress)
        keys = [text_hash(text) for text in texts]
        members_NM = np.stack([members_of.get(key, np.zeros(num_worlds, dtype=np.bool_)) for key in keys])
        others = np.arange(num_worlds) != world
        return ShadowTable(tuple(keys), means_NM[:, others], members_NM[:, others], "the other worlds of the run")

    in_world = frozenset(key for key, row in members_of.items() if row[world])
    return replace(
        target,
        kind=TargetKind.RUN,
        record=record | {name: value for name, value in target.record.items() if name not in ("kind", "name")},
        member_hashes=in_world,
        heldout_hashes=frozenset(hashes) - in_world,
        shadow_table=shadow_table,
    )


def _template(run: RunDirectory) -> dict[str, object]:
    """The template the worlds were trained with, by field; of a run that has none, how long its texts are."""
    training, template = run.manifest.training, run.manifest.template
    if template is not None:
        return template.model_dump()
    return {} if training is None else {"max_tokens": training.max_tokens}


def _export_adapter(run: RunDirectory, world: int, folder: Path, model: str | None) -> Path:
    """The world's adapter as a PEFT folder in the cache; what a killed export left is made again."""
    if not (folder / ADAPTER_WEIGHTS_NAME).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        export_world(run, world, folder, model)
    return folder


def _means(
    run: RunDirectory,
    target: Target,
    options: TargetOptions,
    store: TextStore,
    texts: Sequence[str],
    progress: Progress,
) -> NDArray[np.float64]:
    """Mean ℓ of each text under every world, float64[texts, m], kept in the store as they are computed."""
    assert isinstance(target.scorer, ModelScorer)
    distinct = {text_hash(text): text for text in texts}
    held = store.read()
    known = {key: held[key] for key in distinct if key in held}
    missing = sorted((key for key in distinct if key not in known), key=lambda key: len(distinct[key]))
    progress.begin(f"the other {run.manifest.num_worlds - 1} worlds", len(distinct))
    if known:
        progress.advance(len(known))
    if missing:
        base = run.base(options.model)
        model = base.load(target.scorer.dtype).to(usable_device(options.device))
        scorer = WorldScorer(
            batched_decoder(model), run.worlds(), target.scorer.tokenizer, target.template, target.scorer.fingerprint
        )
        for start in range(0, len(missing), _TEXTS_AT_ONCE):
            keys = missing[start : start + _TEXTS_AT_ONCE]
            means = scorer.mean_logps([distinct[key] for key in keys], progress.advance)
            rows = {
                key: [value if math.isfinite(value) else None for value in row]
                for key, row in zip(keys, means.tolist(), strict=True)
            }
            store.add(rows)
            known |= rows
    rows_NM = [[math.nan if value is None else value for value in known[text_hash(text)]] for text in texts]
    return np.asarray(rows_NM, dtype=np.float64)
