"""The comparison on letters that nobody trained on: the share of next tokens that each model predicts."""

from dataclasses import dataclass

from reticent.decoding.votes import Decoder
from reticent.demo.settings import STEP_BUDGET, DemoFolder, DemoSettings
from reticent.evaluation.run_evaluation import EvaluateRequest, Evaluation, Study, evaluate
from reticent.evaluation.sessions import SessionSettings
from reticent.evaluation.utility import Utility
from reticent.evaluation.vote_casting import VoteSettings
from reticent.pac.mechanism import ReleaseMechanism
from reticent.protocols import Progress
from reticent.stats.means import Mean

_BUDGETS = (2.0**-4, 2.0**-12, 2.0**-20, STEP_BUDGET)
_NUM_DRAWS = 16
_NUM_SESSIONS, _NUM_STREAMS, _QUERIES, _QUERY_TOKENS = 128, 2, 32, 32
_LOGITS_EVERY = 64


@dataclass(frozen=True)
class Accuracies:
    """Shares of next tokens predicted on held-out letters.

    Attributes:
        public: the base alone.
        private: private tokens at the demonstration's step budget, by release mechanism.
        unprotected: one adapter on all letters, without any protection.
        unanimity: share of positions at which all worlds agree.
    """

    public: Mean
    private: dict[ReleaseMechanism, Mean]
    unprotected: Mean
    unanimity: Mean

    @classmethod
    def of(cls, utility: Utility) -> "Accuracies":
        """Take the four from a utility study."""
        return cls(
            utility.row("public").accuracy,
            {mechanism: utility.row(mechanism.value, STEP_BUDGET).accuracy for mechanism in ReleaseMechanism},
            utility.row("full-data-unrestricted").accuracy,
            utility.unanimity,
        )

    def rows(self) -> tuple[tuple[str, Mean], ...]:
        """Each model with its share, in the order in which they are shown."""
        private = ((f"private tokens, {mechanism.value} release", mean) for mechanism, mean in self.private.items())
        return (("public model", self.public), *private, ("no protection", self.unprotected))


def compare_models(folder: DemoFolder, settings: DemoSettings, progress: Progress) -> Evaluation:
    """Cast the worlds' votes on the held-out letters, or reuse them, and measure accuracy, agreement and composition.

    Raises:
        ReticentError: the run or the letters cannot be read.
    """
    request = EvaluateRequest(
        run=folder.run,
        test=folder.held_out,
        out=folder.evaluation,
        corpus=folder.letters,
        studies=(Study.UTILITY, Study.STABILITY, Study.COMPOSITION),
        decoders=(Decoder.GREEDY,),
        budgets=_BUDGETS,
        votes=VoteSettings(candidate_counts=(), mass_every=_LOGITS_EVERY, logits_every=_LOGITS_EVERY),
        sessions=SessionSettings(_QUERIES, _QUERY_TOKENS, _NUM_SESSIONS, _NUM_STREAMS, settings.seed),
        num_draws=_NUM_DRAWS,
        seed=settings.seed,
    )
    return evaluate(request, progress)
