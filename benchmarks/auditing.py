"""Rows on the audit: signals in bucketed passes, gradient norms, prefixes and the cache, against one text at a time.

The target is a LoRA adapter that was trained for a moment on half of the texts, so that there is something to find; the
reference is its base. The peer is float32 throughout, a forward pass a text, whose numbers all attacks share; see
`benchmarks.audit_peers`. A pair times some texts of the set, where the work is proportional to their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import get_peft_model
from torch import nn

from benchmarks import parity
from benchmarks.audit_peers import SIGNALS, gradient_norm_of_text, logp_behind_prefix, signals_of_text
from benchmarks.peers import lora_config
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, time_in_turn
from benchmarks.workspace import Workspace
from reticent.auditing.attacks.min_k_plus_plus import min_k_plus_plus
from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.inputs.gradients import adaptation_gradients, gradient_norms
from reticent.auditing.metrics import auc
from reticent.auditing.targets.scoring import ModelScorer
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash
from reticent.text.template import EncodedText, TextTemplate
from reticent.training.techniques.registry import technique_parameters

_LEARNING_RATE = 1e-3
_EPOCHS = 2
_BATCH = 8
_FLOAT32_TOLERANCE = 1e-3
_BFLOAT16_TOLERANCE = 5e-2
_NEAR_RANKS = 0.99
_RANK_TOLERANCE = 1e-3
_AUC_TOLERANCE = 0.005
_K = 0.2


@dataclass(frozen=True)
class AuditSetting:
    """The setting that all rows of this file share.

    Attributes:
        texts: all of one length; the first half are the members.
        template: what they were encoded with.
        tokenizer: the base's.
        targets: the adapted model in each type.
        scorers: target and reference in each type, as Reticent scores.
        reference: the bare base in float32, for the peer.
    """

    texts: list[EncodedText]
    template: TextTemplate
    tokenizer: Any
    targets: dict[torch.dtype, nn.Module]
    scorers: dict[torch.dtype, tuple[ModelScorer, ModelScorer]]
    reference: Any

    @property
    def members(self) -> list[EncodedText]:
        """The texts the target was trained on."""
        return self.texts[: len(self.texts) // 2]


def setting_of(workspace: Workspace) -> AuditSetting:
    """The setting, made on first use."""
    if "audit" not in workspace.kept:
        workspace.kept["audit"] = _make_setting(workspace)
    setting: AuditSetting = workspace.kept["audit"]
    return setting


def _make_setting(workspace: Workspace) -> AuditSetting:
    template, tokenizer = workspace.audit_template, workspace.base.load_tokenizer()
    texts = _texts(workspace, template.max_tokens)
    config = lora_config(workspace.adapters("attention", num_worlds=1))
    targets: dict[torch.dtype, nn.Module] = {}
    for dtype in (torch.bfloat16, torch.float32):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(workspace.seed)
            targets[dtype] = get_peft_model(workspace.base.load(dtype), config).eval()
    _train(targets[torch.bfloat16], texts[: len(texts) // 2])
    exact = dict(targets[torch.float32].named_parameters())
    with torch.no_grad():
        for name, parameter in targets[torch.bfloat16].named_parameters():
            if parameter.requires_grad:
                exact[name].copy_(parameter)
    scorers = {
        dtype: (
            ModelScorer(module, tokenizer, template, "benchmark"),
            ModelScorer(module, tokenizer, template, "benchmark", with_adapter=False),
        )
        for dtype, module in targets.items()
    }
    return AuditSetting(texts, template, tokenizer, targets, scorers, workspace.exact_model)


def _texts(workspace: Workspace, length: int) -> list[EncodedText]:
    """Texts of the full length: from a corpus where one was given, else sampled from the base."""
    if workspace.texts is not None:
        return workspace.corpus_texts()
    sampled = workspace.sample_texts(workspace.sizes.audit_texts, length)
    return [EncodedText.scored_from(1, row, None, truncated=True) for row in sampled.numpy()]


def _train(module: nn.Module, members: Sequence[EncodedText]) -> None:
    """A few steps on the members, so that the adapter remembers something of them."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=0.0)
    for _ in range(_EPOCHS):
        for start in range(0, len(members), _BATCH):
            ids = torch.from_numpy(np.stack([text.token_ids for text in members[start : start + _BATCH]]))
            logits = module(input_ids=ids, use_cache=False).logits[:, :-1]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def likelihood(workspace: Workspace, dtype: torch.dtype) -> Measured:
    """All signals of target and reference."""
    setting = setting_of(workspace)
    texts = setting.texts[: workspace.sizes.audit_timed]
    ours, peers = setting.scorers[dtype], (setting.targets[torch.float32], setting.reference)

    def one_by_one() -> list[list[NDArray[np.float64]]]:
        return [[signals_of_text(model, text.token_ids) for text in texts] for model in peers]

    def bucketed() -> list[list[TokenSignals | None]]:
        return [scorer.score_encoded(texts) for scorer in ours]

    expected = one_by_one()
    for name, found, those in zip(("target", "reference"), bucketed(), expected, strict=True):
        _require_signals(f"{name} in {dtype}", found, those, dtype)
    _require_adapter(bucketed()[0], expected)
    extra = _auc_differences(workspace, setting) if dtype == torch.bfloat16 else {}
    times = time_in_turn(one_by_one, bucketed, workspace.sizes.audit_pairs)
    return Measured(times, _limit(workspace, times, dtype), notes=_notes(workspace), extra=extra)


def _require_signals(
    what: str, found: Sequence[TokenSignals | None], expected: Sequence[NDArray[np.float64]], dtype: torch.dtype
) -> None:
    """Every signal of every text is the peer's, up to the rounding of the type."""
    tolerance = _FLOAT32_TOLERANCE if dtype == torch.float32 else _BFLOAT16_TOLERANCE
    ours = np.concatenate([np.stack([getattr(s, name) for name in SIGNALS]) for s in found if s is not None], axis=1)
    theirs = np.concatenate(expected, axis=1)
    parity.require(ours.shape == theirs.shape, f"{what}: {ours.shape[1]} tokens scored, by the peer {theirs.shape[1]}")
    for name, row, reference in zip(SIGNALS[:-1], ours, theirs, strict=False):
        parity.require_close(f"{what}: {name}", row, reference, tolerance)
    if dtype == torch.float32:
        # Deep in the vocabulary many logits are within rounding of the target's, so a rank may differ by a few.
        near = np.abs(ours[-1] - theirs[-1]) <= _RANK_TOLERANCE * theirs[-1]
        parity.require(near.mean() >= _NEAR_RANKS, f"{what}: {near.mean():.1%} of the ranks are the peer's")


def _require_adapter(found: Sequence[TokenSignals | None], expected: Sequence[Sequence[NDArray[np.float64]]]) -> None:
    """The target's scores are nearer to the target's than to the reference's: the adapter was not forgotten."""
    ours = np.concatenate([s.logp for s in found if s is not None])
    target, reference = (np.concatenate([table[0] for table in tables]) for tables in expected)
    parity.require(
        bool(np.linalg.norm(ours - target) < np.linalg.norm(ours - reference)),
        "the target is scored as if it had no adapter",
    )


def _auc_differences(workspace: Workspace, setting: AuditSetting) -> dict[str, object]:
    """AUC in bfloat16 less AUC in float32, of two attacks over all texts."""
    num_members = len(setting.members)
    areas: dict[torch.dtype, dict[str, float]] = {}
    for dtype, scorers in setting.scorers.items():
        target, reference = (_means(scorer.score_encoded(setting.texts)) for scorer in scorers)
        scores = {"likelihood": target, "reference": target - reference}
        areas[dtype] = {name: auc(row[:num_members], row[num_members:]) for name, row in scores.items()}
    differences = {name: areas[torch.bfloat16][name] - area for name, area in areas[torch.float32].items()}
    for name, difference in differences.items():
        # The few texts of a trial run make a coarse AUC.
        parity.require(
            workspace.smoke or abs(difference) <= _AUC_TOLERANCE,
            f"AUC of the {name} attack moves by {difference:+.4f} in bfloat16, allowed are {_AUC_TOLERANCE}",
        )
    return {"auc_float32": areas[torch.float32], "auc_difference": differences}


def _means(found: Sequence[TokenSignals | None]) -> NDArray[np.float64]:
    return np.array([s.logp.mean() for s in found if s is not None])


def gradient_norm(workspace: Workspace) -> Measured:
    """2-norms of the gradients over the adapter, of all texts: a pass checks its method on its first ones."""
    setting = setting_of(workspace)
    texts = setting.texts
    exact, module = setting.targets[torch.float32], setting.targets[torch.bfloat16]

    def one_by_one() -> NDArray[np.float64]:
        parameters = technique_parameters(exact)
        return np.array([gradient_norm_of_text(exact, parameters, text.token_ids) for text in texts])

    def together() -> NDArray[np.float64]:
        return gradient_norms(module, texts, (2.0,))[:, 0]

    with adaptation_gradients(exact), adaptation_gradients(module):
        expected = one_by_one()
        some = workspace.sizes.audit_timed
        exactly = gradient_norms(exact, texts[:some], (2.0,))[:, 0]
        parity.require_close("norms, float32", exactly, expected[:some], _FLOAT32_TOLERANCE)
        parity.require_close("norms, bfloat16", together(), expected, _BFLOAT16_TOLERANCE)
        times = time_in_turn(one_by_one, together, workspace.sizes.audit_pairs)
    return Measured(times, None, notes=f"over the adapter's parameters on both sides; {_notes(workspace, len(texts))}")


def recall(workspace: Workspace) -> Measured:
    """One non-member as the prefix of all texts."""
    setting = setting_of(workspace)
    texts, prefix = setting.texts[: workspace.sizes.audit_timed], setting.texts[-1].token_ids
    exact, (scorer, _) = setting.targets[torch.float32], setting.scorers[torch.bfloat16]

    def with_every_text() -> list[NDArray[np.float64]]:
        return [logp_behind_prefix(exact, prefix, text.token_ids) for text in texts]

    def once() -> list[TokenSignals | None]:
        return scorer.score_encoded(texts, prefix)

    expected = np.concatenate(with_every_text())
    exactly = setting.scorers[torch.float32][0].score_encoded(texts, prefix)
    for what, found, tolerance in (
        ("float32", exactly, _FLOAT32_TOLERANCE),
        ("bfloat16", once(), _BFLOAT16_TOLERANCE),
    ):
        ours = np.concatenate([s.logp for s in found if s is not None])
        parity.require_close(f"log p behind a prefix, {what}", ours, expected, tolerance)
    times = time_in_turn(with_every_text, once, workspace.sizes.audit_pairs)
    return Measured(times, None, notes=f"a prefix of {len(prefix)} tokens; {_notes(workspace)}")


def cached_attack(workspace: Workspace) -> Measured:
    """Min-K%++ over a table that is there already, against one forward pass of the same texts."""
    setting = setting_of(workspace)
    texts, (scorer, _) = setting.texts[: workspace.sizes.audit_timed], setting.scorers[torch.bfloat16]
    table = [signals for signals in scorer.score_encoded(texts) if signals is not None]

    def attack() -> list[object]:
        return [min_k_plus_plus(signals, _K) for signals in table]

    for score, signals in zip(attack(), table, strict=True):
        lowest = np.sort((signals.logp - signals.mu) / np.sqrt(signals.sigma2))
        expected = lowest[: max(1, int(np.ceil(_K * len(lowest))))].mean()
        parity.require(
            isinstance(score, float) and abs(score - expected) <= 1e-9 * abs(expected),
            f"Min-K%++ on the table gives {score}, its formula {expected}",
        )
    times = time_in_turn(attack, lambda: scorer.score_encoded(texts), workspace.sizes.audit_pairs)
    return Measured(times, None, notes="the forward pass is Reticent's own, in bfloat16")


def second_run(workspace: Workspace) -> Measured:
    """The first run of a scorer over texts, against a second one on the cache that the first one left."""
    setting = setting_of(workspace)
    scorer = setting.scorers[torch.bfloat16][0]
    texts = [setting.tokenizer.decode(text.token_ids) for text in setting.texts[: workspace.sizes.audit_timed]]
    number = count()
    kept = SignalCache(workspace.scratch / "signals")

    def first() -> object:
        return cached_signals(scorer, texts, SignalCache(workspace.scratch / f"signals-{next(number)}"))

    before = cached_signals(scorer, texts, kept)
    after = cached_signals(scorer, texts, kept)
    for name in map(text_hash, texts):
        one, two = before[name], after[name]
        parity.require(
            one is not None and two is not None and bool(np.array_equal(one.logp, two.logp)),
            "the cache gives back other signals than it was given",
        )
    times = time_in_turn(first, lambda: cached_signals(scorer, texts, kept), workspace.sizes.audit_pairs)
    return Measured(times, None, notes=_notes(workspace))


def _limit(workspace: Workspace, times: Paired, dtype: torch.dtype) -> float | None:
    """The peer's time over that of the products alone, at the peak measured for the type that was asked for."""
    if dtype != workspace.dtype:
        return None
    architecture, sizes = workspace.architecture, workspace.sizes
    weights = sum(group.weight_OI.numel() for layer in architecture.layers for group in layer.groups)
    head = architecture.hidden_size * architecture.vocab_size
    tokens = 2 * sizes.audit_timed * sizes.audit_tokens
    return times.centres_ms[0] / (1e3 * 2.0 * tokens * (weights + head) / workspace.peaks.many_flops)


def _notes(workspace: Workspace, num_texts: int | None = None) -> str:
    sizes = workspace.sizes
    source = "sampled from the base" if workspace.texts is None else workspace.texts.name
    return f"{num_texts or sizes.audit_timed} texts of {sizes.audit_tokens} scored tokens a pair, {source}"


def _row(
    name: str, what: str, against: str, target: float, run: Callable[[Workspace], Measured], weight: float
) -> Benchmark:
    direction = "<=" if target < 1 else ">="
    return Benchmark(name, what, against, target, direction, run, weight)  # type: ignore[arg-type]


_ONE_BY_ONE = "one text a forward pass, shared between attacks, float32"

BENCHMARKS = (
    _row(
        "audit-likelihood-float32",
        "signals of target and reference, bucketed passes, float32",
        _ONE_BY_ONE,
        1.25,
        partial(likelihood, dtype=torch.float32),
        135,
    ),
    _row(
        "audit-likelihood-bfloat16",
        "signals of target and reference, bucketed passes, bfloat16",
        _ONE_BY_ONE,
        3.0,
        partial(likelihood, dtype=torch.bfloat16),
        100,
    ),
    _row(
        "audit-gradient-norm",
        "gradient norms of many texts in one backward pass, bfloat16",
        "one text a backward pass, float32",
        2.0,
        gradient_norm,
        300,
    ),
    _row(
        "audit-recall",
        "a prefix read once for all texts, bfloat16",
        "prefix and text in one forward pass for every text, float32",
        2.5,
        recall,
        65,
    ),
    _row(
        "audit-cached-attack-share",
        "a further attack on a table of signals",
        "one forward pass of the same texts",
        0.01,
        cached_attack,
        8,
    ),
    _row(
        "audit-cache-second-run",
        "a second run over the same texts, on the cache",
        "the first run",
        50.0,
        second_run,
        8,
    ),
)
