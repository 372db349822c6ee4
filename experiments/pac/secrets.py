"""Three secrets: a record in the realised world, a record in the corpus, and what a canary's prefix brings out."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from experiments.pac.common import Experiment, run_script
from experiments.pac.planted import Planted
from experiments.pac.results import Findings
from experiments.pac.settings import TINY, Size
from experiments.studies.canary import CanaryStudySettings, canary_study, count_single_emissions, emission_row
from experiments.studies.matched_dpsgd import MatchedPrivacy, match_privacy
from experiments.studies.model_votes import votes_of_model
from experiments.studies.pmixed import PMixedSettings
from experiments.studies.pmixed_calibration import Reading, calibrate_pmixed
from experiments.studies.pmixed_release import release_pmixed
from experiments.studies.reference_model import token_log_probabilities
from experiments.studies.secrets import Candidates, SecretsCell, SecretsRow, SecretsSettings, model_row, secrets_rows
from reticent.auditing.blind import blind_baseline
from reticent.auditing.results import BlindBaseline
from reticent.benchmark.records import settings_hash
from reticent.decoding.votes import Decoder
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.reports.evaluation import budget_text
from reticent.reports.model import Cell as TableCell
from reticent.reports.model import IntervalChart, Table
from reticent.stats.estimate import Estimate
from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings
from reticent.training.trainer import AdaptRequest, adapt

BUDGETS = (2.0**-8, 2.0**-16, 2.0**-24, 2.0**-32)
VACUOUS = "the PAC bound is 1: nothing to match"
DECODER = Decoder.GUMBEL
_SAMPLING_RATE, _MAX_ORDER = 0.3, 4
_FEWER_PRIVATE_EPOCHS = 3
"""Private training passes over the corpus a third as often: every step costs noise, and its gradients cost time."""


@dataclass(frozen=True)
class SecretsSizes:
    """Records outside the corpus, deployments, and PMixED's draws a token."""

    never: int
    num_deployments: int
    num_token_deployments: int
    num_draws: int


SIZES: Mapping[Size, SecretsSizes] = {
    Size.SMOKE: SecretsSizes(6, 8, 4, 4),
    Size.LOCAL: SecretsSizes(64, 128, 128, 16),
    Size.PAPER: SecretsSizes(1024, 256, 64, 16),
}


def measure(experiment: Experiment) -> Findings:
    """Attack every protection for each of the three secrets."""
    study = _SecretsStudy(experiment)
    rows = [*study.voting_rows(), *study.matched_rows()]
    blind = study.blind()
    warnings = [] if not blind.beats_chance else [_BLIND.format(blind.auc.value)]
    return Findings(
        title="Three secrets: measured success of attacks on every protection",
        results={
            "rows": rows,
            "num_tokens": study.candidates.tensor.num_positions,
            "sizes": {**vars(study.planted.sizes), **vars(study.sizes)},
            "dp_sgd": {"epochs": study.private_training.epochs, "batch_size": study.private_training.batch_size},
            "pmixed": {"sampling_rate": _SAMPLING_RATE, "max_order": _MAX_ORDER, "reading": Reading.TIGHT.value},
            "blind": {"auc": blind.auc.value, "low": blind.auc.low, "high": blind.auc.high},
        },
        blocks=(_table(rows, study), _chart(rows)),
        warnings=tuple(warnings),
    )


_BLIND = (
    "without any model, the words alone tell records of the corpus from others (AUC {:.2f}): the two sets differ in "
    "more than membership"
)


class _SecretsStudy:
    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.planted = experiment, Planted(experiment)
        self.sizes = SIZES[experiment.settings.size]
        self.seed = experiment.settings.seed
        never = (*experiment.texts.spare, *experiment.texts.test)[: self.sizes.never]
        records = [*self.planted.records, *never]
        order = np.random.default_rng([self.seed, 2]).permutation(len(records))
        self.texts = [records[place] for place in order]
        self.members_I: NDArray[np.bool_] = order < len(self.planted.records)
        max_tokens = self.planted.sizes.max_tokens
        self.tokens = experiment.tokens(self.texts, max_tokens)
        reference = experiment.base.load(experiment.dtype)
        surprise = [-token_log_probabilities(reference, tokens) for tokens in self.tokens]
        self.candidates = Candidates(
            tensor=experiment.cast("records", self.planted.run, self.texts, max_tokens, self.planted.votes),
            decoder=DECODER,
            members_I=self.members_I,
            surprise_N=np.concatenate(surprise),
            members_UM=self.planted.run.membership().members,
        )

    def voting_rows(self) -> list[SecretsRow]:
        """Unprotected models, controls and release mechanisms."""
        canaries = canary_study(
            self.planted.canary_votes,
            DECODER,
            self.planted.canary_texts,
            CanaryStudySettings(BUDGETS, num_deployments=self.planted.sizes.num_deployments, seed=self.seed),
        )
        settings = SecretsSettings(
            budgets=BUDGETS,
            num_deployments=self.sizes.num_deployments,
            num_token_deployments=self.sizes.num_token_deployments,
            seed=self.seed,
        )
        self.experiment.progress.note("attacking worlds, controls and release mechanisms")
        return secrets_rows(
            self.candidates,
            settings,
            lambda method, budget: SecretsCell(estimate=canaries.row(method, budget).extraction),
        )

    def matched_rows(self) -> list[SecretsRow]:
        """PMixED and DP-SGD, each held to the success that PAC's bound concedes at a budget."""
        targets = {
            budget: attack_success(budget * self.candidates.tensor.num_positions, MEMBERSHIP_PRIOR)
            for budget in BUDGETS
        }
        reachable = {budget: target for budget, target in targets.items() if target < 1.0}
        rows = [_unmatched_row(method, budget) for method in ("pmixed", "dp-sgd") for budget in BUDGETS
                if budget not in reachable]  # fmt: skip
        rows += self._pmixed_rows(reachable)
        rows += [self._dpsgd_row(budget, target) for budget, target in reachable.items()]
        return rows

    def blind(self) -> BlindBaseline:
        """The separation by the words alone."""
        members = [text for text, member in zip(self.texts, self.members_I, strict=True) if member]
        others = [text for text, member in zip(self.texts, self.members_I, strict=True) if not member]
        return blind_baseline(members, others, seed=self.seed)

    @property
    def private_training(self) -> SingleTrainingSettings:
        """DP-SGD's settings."""
        return SingleTrainingSettings(
            epochs=max(1, self.planted.training.epochs // _FEWER_PRIVATE_EPOCHS),
            batch_size=self.planted.training.batch_size,
            learning_rate=self.planted.training.learning_rate,
            seed=self.planted.training.seed,
        )

    def _pmixed_rows(self, targets: Mapping[float, float]) -> list[SecretsRow]:
        num_tokens = self.candidates.tensor.num_positions
        settings = [
            calibrate_pmixed(
                self.planted.sizes.num_shards, _SAMPLING_RATE, _MAX_ORDER, num_tokens, target, Reading.TIGHT
            )
            for target in targets.values()
        ]
        self.experiment.progress.note("releasing with PMixED")
        along, expected = self._release_by_pmixed(settings, self.tokens, 3)
        canaries = self.planted.canary_texts
        answers, _ = self._release_by_pmixed(settings, canaries.tokens, 4)
        rows = []
        for number, (budget, target) in enumerate(targets.items()):
            emitted = count_single_emissions(self.planted.canary_votes, canaries, answers[number])
            extraction = emission_row("pmixed", emitted, canaries, budget).extraction
            rows.append(
                model_row(
                    self.candidates, "pmixed", along[number], SecretsCell(estimate=extraction), self.seed,
                    step_budget=budget, bound=target, public_match_N=expected,
                )
            )  # fmt: skip
        return rows

    def _release_by_pmixed(
        self, settings: Sequence[PMixedSettings], texts: Sequence[Sequence[int]], stream: int
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.float64]]:
        """Released tokens under each setting, and the public model's chances of the texts' own tokens."""
        forcing = self.experiment.forcing(self.planted.shards)
        num_candidates = self.planted.votes.num_candidates
        generator = np.random.default_rng([self.seed, stream])
        found = [
            release_pmixed(forcing, tokens, settings, num_candidates, self.sizes.num_draws, generator)
            for tokens in texts
        ]
        by_setting = [np.concatenate([text.tokens_NR[number] for text in found]) for number in range(len(settings))]
        return by_setting, np.concatenate([text.public_match_N for text in found])

    def _dpsgd_row(self, budget: float, target: float) -> SecretsRow:
        training = self.private_training
        matched = match_privacy(target, len(self.planted.corpus), training, delta=min(1e-5, (target - 0.5) / 10))
        model = self._train_or_find(matched, training)
        votes = self.planted.votes
        tokens_N1 = votes_of_model(model, self.tokens, self.candidates.tensor, DECODER, votes)[:, None]
        canaries, canary_votes = self.planted.canary_texts, self.planted.canary_votes
        answers_N1 = votes_of_model(model, canaries.tokens, canary_votes, DECODER, votes)[:, None]
        extraction = emission_row(
            "dp-sgd", count_single_emissions(canary_votes, canaries, answers_N1), canaries
        ).extraction
        return model_row(
            self.candidates, "dp-sgd", tokens_N1, SecretsCell(estimate=extraction), self.seed,
            step_budget=budget, bound=matched.success,
        )  # fmt: skip

    def _train_or_find(self, matched: MatchedPrivacy, training: SingleTrainingSettings) -> nn.Module:
        """The model trained with that privacy, made or found."""
        experiment, lora = self.experiment, self.planted.lora
        corpus = experiment.corpus_file("planted", self.planted.corpus)
        identity = {
            "corpus": corpus.name,
            "privacy": matched.privacy.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
            "lora": lora.model_dump(mode="json"),
            "base": experiment.base.content_hash,
        }
        request = AdaptRequest(
            corpus=corpus,
            model=str(experiment.base.folder) if experiment.settings.model == TINY else experiment.settings.model,
            out=experiment.folder / "models" / f"dp-sgd-{settings_hash(identity)[:12]}",
            technique=Technique.LORA,
            settings=TechniqueSettings(rank=lora.rank, alpha=lora.alpha),
            template=TextTemplate(max_tokens=self.planted.sizes.max_tokens),
            training=training,
            privacy=matched.privacy,
        )
        model, _ = adapt(request, experiment.progress, resume=True).load(experiment.base)
        return model


def _unmatched_row(method: str, budget: float) -> SecretsRow:
    cell = SecretsCell(reason=VACUOUS)
    return SecretsRow(
        method=method, step_budget=budget, curator=cell, tokens=cell, corpus_auc=cell, corpus_accuracy=cell,
        extraction=cell,
    )  # fmt: skip


def _make_cell(cell: SecretsCell) -> TableCell:
    return cell.estimate if cell.estimate is not None else cell.reason


def _table(rows: Sequence[SecretsRow], study: _SecretsStudy) -> Table:
    planted, num_tokens = study.planted.sizes, study.candidates.tensor.num_positions
    num_members, num_records = int(study.members_I.sum()), study.members_I.size
    return Table(
        name="secrets",
        title="Attack success by secret",
        columns=(
            "Protection", "Nats a token", "Bound", "of secret", "1 realised world: curator",
            "1 realised world: tokens alone", "2 corpus: AUC", "2 corpus: accuracy", "3 canary extracted",
        ),
        rows=tuple(
            (
                row.method,
                budget_text(row.step_budget),
                "none" if row.bound is None else row.bound,
                "none" if row.bounded_secret is None else row.bounded_secret,
                *(
                    _make_cell(cell)
                    for cell in (row.curator, row.tokens, row.corpus_auc, row.corpus_accuracy, row.extraction)
                ),
            )
            for row in rows
        ),
        note=f"One deployment answers {num_tokens:,} chosen prompts, one token each: every beginning of "
        f"{num_members} records of the corpus and {num_records - num_members} others. "
        f"{study.sizes.num_deployments} deployments ({study.sizes.num_token_deployments} for tokens alone), "
        f"{planted.num_worlds} worlds, {DECODER.value} votes. PMixED ({planted.num_shards} shards) and DP-SGD are held "
        "to the success that PAC's bound concedes at that budget; DP-SGD counts each copy of a canary as a record. "
        "Intervals: 95 %; over deployments for secrets 1 and 3, over records for secret 2.",
    )  # fmt: skip


def _chart(rows: Sequence[SecretsRow]) -> IntervalChart:
    shown: list[tuple[str, Estimate]] = []
    for row in rows:
        if row.corpus_auc.estimate is not None:
            name = row.method if row.step_budget is None else f"{row.method} {budget_text(row.step_budget)}"
            shown.append((name, row.corpus_auc.estimate))
    return IntervalChart(
        title="Was this record in the corpus at all?",
        description="AUC of the attack by chosen prompts for every protection; one half is chance",
        x_label="AUC",
        rows=tuple(shown),
        reference=0.5,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("secrets", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
