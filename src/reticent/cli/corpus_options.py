"""Options of the commands for a corpus deployment, and what belongs to which guarantee."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.output import notes
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.guarantees import HIDES, Guarantee

if TYPE_CHECKING:
    from reticent.api.corpus_deployments import CorpusTerms
    from reticent.dp.release import CorpusSettings

CORPUS_ONLY = ("total_epsilon", "delta", "membership_success", "total_rho", "clip", "gain")
REALISED_WORLD_ONLY = ("step_budget", "total_budget", "decoder", "release", "charging")

_DRAWN = "tokens are drawn from the operating system's randomness, which is the noise that hides who is in the corpus"
_NO_CAP = (
    "this deployment has NO CAP: what its tokens can tell grows without limit. Set one with --total-epsilon, "
    "--membership-success or --total-rho, now or at any later start"
)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The options of a command for a run that carries the corpus guarantee."""

    total_epsilon: Annotated[
        float | None,
        typer.Option(
            help="For a corpus run: cap over the deployment's life as epsilon, at --delta; lowered, never raised."
        ),
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="For a corpus run: below one over worlds times places; 1e-6 unless given.")
    ] = None
    membership_success: Annotated[
        float | None,
        typer.Option(
            help="For a corpus run: the cap as success in telling whether a unit is in the corpus, between 0.5 and 1."
        ),
    ] = None
    total_rho: Annotated[float | None, typer.Option(help="For a corpus run: the cap as rho.")] = None
    clip: Annotated[
        float | None,
        typer.Option(
            help="For a corpus run: nats. Chosen at the first use, as are gain and temperature: 0.5 unless given."
        ),
    ] = None
    gain: Annotated[
        float | None,
        typer.Option(
            help="For a corpus run: worlds move a score by at most gain times clip over temperature; 2 unless given."
        ),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="For a corpus run: divides scores; 1 unless given.")] = None
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Tokens the public model nominates at each step, k; 200 unless given. A corpus run keeps its own."
        ),
    ] = None

    @property
    def terms(self) -> "CorpusTerms":
        """The terms that a corpus deployment is asked for."""
        from reticent.api.corpus_deployments import CorpusTerms
        from reticent.dp.plan import CorpusBound

        return CorpusTerms(
            bound=CorpusBound(self.total_rho, self.total_epsilon, self.membership_success),
            delta=self.delta,
            clip=self.clip,
            gain=self.gain,
            temperature=self.temperature,
            candidates=self.candidates,
        )


def refuse_options_of_the_other(options: object, run: Path, guarantee: Guarantee, others: Sequence[str]) -> None:
    """Refuse options that say nothing under the guarantee that a run carries.

    Args:
        options: of the command.
        run: the run directory.
        guarantee: of the run.
        others: names of the options that belong to the other guarantee; None is one that was not given.

    Raises:
        InvalidValueError: one was given.
    """
    given = {name: value for name in others if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if guarantee is Guarantee.CORPUS and value is Decoder.GREEDY:
            raise InvalidValueError(f"{option} greedy is refused: {run} carries the corpus guarantee, and {_DRAWN}")
        if name == "seed":
            raise InvalidValueError(f"{option} is refused: {run} carries the corpus guarantee, and {_DRAWN}")
        raise InvalidValueError(
            f"{run} carries the guarantee {guarantee}, and {option} belongs to the other; leave it out"
        )


def announce_corpus_deployment(constants: "CorpusSettings", *, is_new: bool, has_cap: bool) -> None:
    """Say what whoever opens a corpus deployment must know: what it hides, its constants, and that nothing caps it."""
    notes.print(f"guarantee corpus: hides {HIDES[Guarantee.CORPUS]}", highlight=False, soft_wrap=True)
    if is_new:
        notes.print(
            f"new deployment: clip {constants.clip:g}, gain {constants.gain:g}, temperature {constants.temperature:g} "
            f"and {constants.num_candidates} candidates are chosen now and stay",
            highlight=False,
            soft_wrap=True,
        )
    if not has_cap:
        notes.print(_NO_CAP, highlight=False, soft_wrap=True)
