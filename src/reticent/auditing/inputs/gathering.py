"""Everything the attacks need of a target, gathered once: signals, neighbours, gradients, shadows, prefixes.

Every pass is kept in the cache under the model's fingerprint and the text's hash, so that a killed audit resumes where
it stopped and a further attack costs no pass. What cannot be had for a text is `Missing` with its reason, never absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Need, SelfPromptedEvidence, ShadowEvidence, TextEvidence
from reticent.auditing.attacks.rmia import GAMMA, OfflineScaling, tune_offline_scaling
from reticent.auditing.failures import describe_failure
from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.inputs.gradient_pass import cached_gradient_norms
from reticent.auditing.inputs.guesses import guess_evidence
from reticent.auditing.inputs.neighbour_sources import BaseResampler, MaskedLm
from reticent.auditing.inputs.neighbours import load_or_make_neighbours
from reticent.auditing.inputs.overlap import TextSet
from reticent.auditing.inputs.places import PlacedScorer
from reticent.auditing.inputs.prefixes import PrefixedScorer, PrefixedServer, longest_text
from reticent.auditing.inputs.samples import sampled_continuations
from reticent.auditing.inputs.self_prompted import SelfPrompting, self_prompted_reference
from reticent.auditing.inputs.shadows import ShadowTable, shadow_evidence
from reticent.auditing.inputs.signals import ScoreTable
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.results import MANY_MISSING
from reticent.auditing.targets.continuations import Continuer
from reticent.auditing.targets.endpoint import RemoteScorer, ServerScorer
from reticent.auditing.targets.http_retries import ServerGoneError
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.shadow_folders import open_adapted_like, open_shadow
from reticent.auditing.targets.targets import Target
from reticent.auditing.targets.top_logprobs import TopLogprobScorer
from reticent.errors import AuditError, EndpointError, InvalidValueError, StorageError
from reticent.protocols import Progress, Scorer, TokenSignals
from reticent.text.corpus import text_hash
from reticent.training.settings import DTypeName

_SHOTS_AT_MOST_OF_NONMEMBERS = 4
"""At least this many non-members for each shot, for a shot is lost to the attack that uses it."""


_NO_NEIGHBOURS = "the text has no neighbours: no token of it can be swapped for another"
_IS_SHOT = "the text is one of the prefix's shots, which are not scored themselves"
_IS_BEGINNING = "the text's beginning prompted the target for the self-prompted reference"
_RESUME = "run the same command again to resume"
_NOTHING_PREDICTED = "the text has no token that the model predicts"


@dataclass(frozen=True)
class GatheringSettings:
    """Settings of the inputs that attacks need.

    Attributes:
        cache: the folder where passes are kept.
        seed: of neighbours, paraphrases and the choice of shots.
        num_neighbours: n of the neighbourhood attack.
        num_paraphrases: of SPV-MIA.
        num_shots: non-members in ReCaLL's prefix, at most.
        num_samples: continuations of each text's first half, for SaMIA.
        num_places: places of each text that are asked about one by one, at most.
        mlm: a masked language model for neighbours, by folder; None for the target's own base.
        shadows: adapted folders of shadow models.
    """

    cache: Path
    seed: int = 0
    num_neighbours: int = 25
    num_paraphrases: int = 10
    num_shots: int = 10
    num_samples: int = 10
    num_places: int = 64
    mlm: str | None = None
    shadows: tuple[str, ...] = ()


AttackInput = Any | Missing
"""One text's part of a need, as `TextEvidence` types it."""


@dataclass
class AttackInputs:
    """Inputs gathered for the attacks.

    Attributes:
        by_need: for each need, the ingredient of each text by hash.
        facts: what the report says about how they were made.
        warnings: what it must warn of.
        failures: the needs that could not be met, and why.
        incomplete: what a repetition of the audit would bring: those of `warnings` that say so.
    """

    by_need: dict[Need, Mapping[str, AttackInput]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failures: dict[Need, str] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)

    def evidence(self, key: str, text: str) -> TextEvidence:
        """All of one text."""

        def part(need: Need) -> AttackInput | None:
            return self.by_need[need][key] if need in self.by_need else None

        return TextEvidence(
            target=part(Need.TARGET),
            reference=part(Need.REFERENCE),
            text=text,
            neighbour_means=part(Need.NEIGHBOURS),
            gradient_norm=part(Need.GRADIENT),
            shadows=part(Need.SHADOWS),
            self_prompted=part(Need.SELF_PROMPTED),
            prefixed=part(Need.PREFIX),
            samples=part(Need.SAMPLES),
            guesses=part(Need.GUESSES),
        )


class Gatherer:
    """Makes the ingredients of one audit.

    Attributes:
        continuer: asks a server for text; None for any other target.
    """

    def __init__(
        self, target: Target, members: TextSet, nonmembers: TextSet, settings: GatheringSettings, progress: Progress
    ) -> None:
        """Take what is audited and the two sets of texts."""
        self._target = target
        self._members, self._nonmembers = members, nonmembers
        # In turn, so that what a model was asked until it stopped answering is of both sets.
        self._texts = _alternate(members.texts, nonmembers.texts)
        self._hashes = _alternate(members.hashes, nonmembers.hashes)
        self._settings = settings
        self._progress = progress
        self._cache = SignalCache(settings.cache)
        self.continuer: Continuer | None = None
        if target.client is not None:
            kept = TextStore(settings.cache / target.scorer.fingerprint / "continuations.jsonl")
            self.continuer = Continuer(target.client, kept)

    def signals(self, what: str, scorer: Scorer, texts: Sequence[str]) -> ScoreTable:
        """One pass of a model over texts, as far as the cache does not hold it; `what` names it for the progress."""
        self._progress.begin(what, len(set(texts)))
        return cached_signals(scorer, texts, self._cache, self._progress.advance)

    def gather(self, needs: frozenset[Need]) -> AttackInputs:
        """Make what some attacks need together.

        A need that cannot be met is among `failures` with its reason, and costs no other.

        Raises:
            AuditError, EndpointError, ModelError: the target cannot be asked.
            StorageError: what was computed cannot be kept.
        """
        found = AttackInputs()
        if Need.TARGET in needs:
            target = self._target.scorer
            found.by_need[Need.TARGET] = _signals_or_reasons(target, self.signals("target", target, self._texts))
            self._note_unanswered(target, "", found)
            self._note_bounds(found)
        makers = {
            Need.REFERENCE: self._reference,
            Need.SHADOWS: self._shadows,
            Need.PREFIX: self._gather_prefixed,
            Need.GRADIENT: self._gradients,
            Need.NEIGHBOURS: self._neighbour_means,
            Need.SELF_PROMPTED: self._self_prompted,
            Need.SAMPLES: self._samples,
            Need.GUESSES: self._guesses,
        }
        for need, make in makers.items():
            if need not in needs:
                continue
            try:
                found.by_need[need] = make(found)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - models of any kind fail in any way, each at one attack's cost
                found.failures[need] = describe_failure(error)
                if isinstance(error, EndpointError):
                    self._note_partial(f"partial result: {error}", found)
        return found

    def _note_bounds(self, found: AttackInputs) -> None:
        target = self._target.scorer
        if isinstance(target, TopLogprobScorer):
            share = target.share_outside(list(self._target_signals(found).values()))
            found.facts["tokens"] = f"up to {self._settings.num_places} places of each text, asked about one by one"
            found.facts["top"] = (
                f"{100 * share:.1f} % of these tokens lie outside the {target.num_top} that the server shows: each has "
                "the largest log-probability that it can have, and scores are upper bounds"
            )

    def _note_partial(self, reason: str, found: AttackInputs) -> None:
        if reason not in found.incomplete:
            found.warnings.append(reason)
            found.incomplete.append(reason)

    def _note_unanswered(self, scorer: Scorer, whose: str, found: AttackInputs, num_texts: int | None = None) -> None:
        if not isinstance(scorer, ServerScorer) or not scorer.failures:
            return
        num_texts = num_texts or len(self._texts)
        answered = f"the server scored {num_texts - len(scorer.failures)} of {num_texts} texts"
        if scorer.incomplete is not None:
            self._note_partial(f"{whose}partial result: {answered}; {scorer.incomplete}; {_RESUME}", found)
        elif len(scorer.failures) > MANY_MISSING * num_texts:
            self._note_partial(f"{whose}partial result: {answered} and refused the others", found)
        else:
            found.warnings.append(f"{whose}{answered} and refused the others")

    def _samples(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        assert self.continuer is not None
        self._progress.begin("continuations", len(self._texts))
        number, seed = self._settings.num_samples, self._settings.seed
        sampled = sampled_continuations(self.continuer, self._target.template, self._texts, number, seed)
        self._progress.advance(len(self._texts))
        found.facts["samples"] = f"{number} of each text's second half, at temperature 1"
        self._note_unwritten("continued", sampled, found)
        return sampled

    def _guesses(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        reference, number = self._target.reference, self._settings.num_places
        surrogate = reference.scorer if isinstance(reference, PlacedScorer) else reference
        assert self.continuer is not None
        assert isinstance(surrogate, ModelScorer)
        self._progress.begin("guesses", len(self._texts))
        guesses = guess_evidence(self.continuer, surrogate, self._texts, number, self._progress)
        found.facts["guesses"] = (
            f"one token at temperature 0 at up to {number} places of each text; similarity by the cosine of the "
            "reference's own centred input embeddings"
        )
        self._note_unwritten("guessed at", guesses, found)
        return guesses

    def _note_unwritten(self, what: str, inputs: Mapping[str, AttackInput], found: AttackInputs) -> None:
        """Say that a server that is asked for text has stopped to give any."""
        assert self.continuer is not None
        stopped = self.continuer.client.incomplete
        if stopped is not None:
            answered = sum(not isinstance(entry, Missing) for entry in inputs.values())
            partial = f"partial result: the server {what} {answered} of {len(inputs)} texts; {stopped}; {_RESUME}"
            self._note_partial(partial, found)

    def _reference(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        reference = self._target.reference
        assert reference is not None
        table = self.signals("reference", reference, self._texts)
        self._note_unanswered(reference, "reference: ", found)
        return _signals_or_reasons(reference, table)

    def _shadows(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        table = self._shadow_table()
        found.facts["shadow models"] = f"{table.num_models}, {table.source}"
        means = {key: float(s.logp.mean()) for key, s in self._target_signals(found).items()}
        scaling = self._tuned_scaling(table)
        found.facts["rmia"] = _describe_scaling(scaling)
        evidence: dict[str, ShadowEvidence | Missing] = shadow_evidence(
            table, means, self._nonmembers.hashes, scaling.a
        )
        absent = Missing("the shadow models were not asked about the text")
        return {key: evidence.get(key, absent) for key in self._hashes}

    def _tuned_scaling(self, table: ShadowTable) -> OfflineScaling:
        """RMIA's scaling; a single shadow model is attacked with the reference as the model without the text."""
        means_NK, members_NK, reference = table.means_NK, table.members_NK, self._target.reference
        if table.num_models == 1 and members_NK.any() and reference is not None:
            base_N = self.signals("reference", reference, self._texts).mean_logp(table.hashes)
            means_NK = np.column_stack([means_NK, base_N])
            members_NK = np.column_stack([members_NK, np.zeros(len(base_N), dtype=np.bool_)])
        return tune_offline_scaling(means_NK, members_NK)

    def _shadow_table(self) -> ShadowTable:
        if self._settings.shadows:
            return self._shadow_folders()
        if self._target.shadow_table is not None:
            return self._target.shadow_table(self._texts)
        # RMIA needs models without the text alone, and the base before adaptation is one.
        reference = self._target.reference
        assert reference is not None
        means = self.signals("reference", reference, self._texts).mean_logp(self._hashes)[:, None]
        return ShadowTable(
            self._hashes, means, np.zeros(means.shape, dtype=np.bool_), "the reference, without any text"
        )

    def _shadow_folders(self) -> ShadowTable:
        means: list[NDArray[np.float64]] = []
        members: list[NDArray[np.bool_]] = []
        for number, name in enumerate(self._settings.shadows, start=1):
            scorer, trained_on = open_shadow(name, self._target)
            asked = self._target.scorer
            read = asked.placed(scorer) if isinstance(asked, TopLogprobScorer) else scorer
            table = self.signals(f"shadow {number} of {len(self._settings.shadows)}", read, self._texts)
            means.append(table.mean_logp(self._hashes))
            members.append(np.array([key in trained_on for key in self._hashes]))
        return ShadowTable(
            self._hashes,
            np.stack(means, axis=1),
            np.stack(members, axis=1),
            "adapted models with their own member lists",
        )

    def _gather_prefixed(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        scorer, others, shots = self._target.scorer, self._not_shots(), self._shots()
        prefixed: PrefixedScorer | PrefixedServer
        try:
            if isinstance(scorer, RemoteScorer):
                prefixed = PrefixedServer(scorer, shots, max(others, key=len))
            else:
                assert isinstance(scorer, ModelScorer)
                prefixed = PrefixedScorer(scorer, shots, longest_text(scorer, others))
        except InvalidValueError as error:
            return dict.fromkeys(self._hashes, Missing(str(error)))
        except ServerGoneError as gone:
            self._note_partial(f"behind a prefix: partial result: {gone}; {_RESUME}", found)
            return dict.fromkeys(self._hashes, Missing(str(gone)))
        found.facts["prefix"] = f"{prefixed.num_shots} non-members, which this attack does not score"
        # A shot that did not fit is in no prefix; it is left out like the others, so that the choice of texts is one.
        scored = _signals_or_reasons(prefixed, self.signals("behind a prefix", prefixed, others))
        self._note_unanswered(prefixed, "behind a prefix: ", found, len(others))
        return {key: scored.get(key, Missing(_IS_SHOT)) for key in self._hashes}

    def _neighbour_means(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        lists = {key: made[: self._settings.num_neighbours] for key, made in self._neighbours(found).items()}
        means = self._means_of(self._target.scorer, "neighbours", lists)
        return {key: means.get(key, Missing(_NO_NEIGHBOURS)) for key in self._hashes}

    def _self_prompted(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        try:
            reference = self._self_prompted_reference()
        except AuditError as error:
            return dict.fromkeys(self._hashes, Missing(str(error)))
        found.facts["self-prompted reference"] = (
            "the base, adapted to what the target writes after non-members' beginnings"
        )
        lists = {key: made[: self._settings.num_paraphrases] for key, made in self._neighbours(found).items()}
        for shot in self._shots():
            lists.pop(text_hash(shot), None)
        by_target = self._means_of(self._target.scorer, "paraphrases", lists)
        by_reference = self._means_of(reference, "paraphrases, self-prompted reference", lists)
        scored = self.signals("self-prompted reference", reference, self._not_shots())
        evidence: dict[str, AttackInput] = dict.fromkeys(self._hashes, Missing(_IS_BEGINNING))
        for key, own in scored.items():
            if own is None:
                evidence[key] = Missing(_NOTHING_PREDICTED)
            elif key not in by_target or key not in by_reference:
                evidence[key] = Missing(_NO_NEIGHBOURS)
            else:
                evidence[key] = SelfPromptedEvidence(by_target[key], own, by_reference[key])
        return evidence

    def _self_prompted_reference(self) -> ModelScorer:
        scorer, base = self._target.scorer, self._target.base
        assert isinstance(scorer, ModelScorer)
        assert base is not None
        prompting = SelfPrompting(seed=self._settings.seed, dtype=_dtype_name(scorer))
        folder = self._settings.cache
        adapted = self_prompted_reference(scorer, base, self._shots(), prompting, folder, self._progress)
        return open_adapted_like(str(adapted.folder), self._target, base)

    def _neighbours(self, found: AttackInputs) -> dict[str, list[str]]:
        """Neighbours of each text, by its hash; made once for all that need some, and kept."""
        source = self._neighbour_source()
        found.facts["neighbours from"] = source.name
        self._progress.begin("making neighbours", len(self._texts))
        count = max(self._settings.num_neighbours, self._settings.num_paraphrases)
        settings, layout = self._settings, self._target.template.layout
        return load_or_make_neighbours(
            self._texts, count, source, settings.seed, settings.cache, self._progress.advance, layout
        )

    def _neighbour_source(self) -> MaskedLm | BaseResampler:
        module, reference = self._target.module, self._target.reference
        if self._settings.mlm is not None:
            device = "cpu" if module is None else str(next(module.parameters()).device)
            return MaskedLm.open(self._settings.mlm, device)
        base = reference if isinstance(reference, ModelScorer) else self._target.scorer
        assert isinstance(base, ModelScorer)
        return BaseResampler(base)

    def _means_of(self, scorer: Scorer, what: str, lists: Mapping[str, list[str]]) -> dict[str, NDArray[np.float64]]:
        """Mean ℓ of each listed text that has a score, by the hash of the text it belongs to; none without one."""
        table = self.signals(what, scorer, [text for texts in lists.values() for text in texts])
        means = {key: table.mean_logp([text_hash(text) for text in texts]) for key, texts in lists.items()}
        scored = {key: values[np.isfinite(values)] for key, values in means.items()}
        return {key: values for key, values in scored.items() if len(values)}

    def _gradients(self, found: AttackInputs) -> Mapping[str, AttackInput]:
        scorer, module = self._target.scorer, self._target.module
        assert isinstance(scorer, ModelScorer)
        assert module is not None
        self._progress.begin("gradients", len(self._texts))
        store = TextStore(self._settings.cache / scorer.fingerprint / "gradient_norms.jsonl")
        norms = cached_gradient_norms(module, scorer, self._texts, store, self._progress.advance)
        found.facts["gradient norm"] = f"p = 2, over {self._target.num_trained:,} trained parameters"
        return {key: norms.get(key, Missing(_NOTHING_PREDICTED)) for key in self._hashes}

    def _shots(self) -> list[str]:
        """Non-members for prefix and prompts, drawn by the seed; few enough to leave most of them to be scored."""
        available = len(self._nonmembers.texts)
        count = max(1, min(self._settings.num_shots, available // _SHOTS_AT_MOST_OF_NONMEMBERS))
        chosen = np.random.default_rng(self._settings.seed).permutation(available)[:count]
        return [self._nonmembers.texts[index] for index in sorted(chosen)]

    def _not_shots(self) -> list[str]:
        shots = frozenset(self._shots())
        return [text for text in self._texts if text not in shots]

    def _target_signals(self, found: AttackInputs) -> dict[str, TokenSignals]:
        return {key: s for key, s in found.by_need[Need.TARGET].items() if isinstance(s, TokenSignals)}


def _alternate(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """One of each in turn, then what is left of the longer."""
    pairs = zip_longest(first, second)
    return tuple(item for pair in pairs for item in pair if item is not None)


def _signals_or_reasons(scorer: Scorer, table: ScoreTable) -> dict[str, TokenSignals | Missing]:
    """Signals, or why there are none."""
    failures = scorer.failures if isinstance(scorer, ServerScorer) else {}
    return {key: Missing(failures.get(key, _NOTHING_PREDICTED)) if s is None else s for key, s in table.items()}


def _describe_scaling(scaling: OfflineScaling) -> str:
    reason = f"tuned on {scaling.num_models} shadow models, each attacked with the others as its references"
    if scaling.num_models == 0:
        reason = "there being no model to tune it on"
    elif scaling.num_models == 1:
        reason = "tuned on 1 shadow model, attacked with the other or the reference as the model without the text"
    return f"gamma = {GAMMA:g}, a = {scaling.a:g}: {reason}"


def _dtype_name(scorer: ModelScorer) -> DTypeName:
    return "bfloat16" if scorer.dtype == torch.bfloat16 else "float32"
