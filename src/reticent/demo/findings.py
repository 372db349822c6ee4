"""Findings of the demonstration: texts of the three writers and results of attacks, kept in one file for later calls.

The deployment's tokens are charged when they are released; repeating the demonstration must not spend more for the
same text. The file names the run and the settings it belongs to, and is made anew for any other.
"""

from pathlib import Path

from pydantic import ValidationError

from reticent._files import atomic_write_bytes
from reticent._settings import FiniteModel
from reticent.api.deployments import run_id
from reticent.demo.letters import Letter, read_letters
from reticent.demo.presence import measure_presence
from reticent.demo.settings import DemoFolder, DemoSettings
from reticent.demo.writers import (
    LetterWriter,
    PlainWriters,
    ask_for_secret,
    count_recitals,
    deploy,
    finish_letter,
    recite,
)
from reticent.errors import CorpusError
from reticent.pac.mechanism import ReleaseMechanism
from reticent.stats.estimate import Estimate

_SETTINGS = ("attempts", "seed", "max_tokens", "prompt")
"""The settings that findings depend on beside the run."""


class SecretAnswers(FiniteModel):
    """Answers to the planted secret's prefix.

    Attributes:
        prefix, secret: what was asked, and what was planted.
        repetitions: how often the note that holds it was filed.
        unprotected: what the adapter without protection wrote.
        released: what the deployment released, by release mechanism, one text an attempt.
    """

    prefix: str
    secret: str
    repetitions: int
    unprotected: str
    released: dict[ReleaseMechanism, tuple[str, ...]]

    @property
    def is_recited(self) -> bool:
        """True if the adapter without protection wrote the secret."""
        return self.secret in self.unprotected

    @property
    def num_attempts(self) -> int:
        """The number of times that the deployment was asked."""
        return sum(map(len, self.released.values()))

    @property
    def num_released(self) -> int:
        """The number of its answers that hold the secret whole."""
        return sum(count_recitals(self.secret, answers) for answers in self.released.values())


class DemoFindings(FiniteModel):
    """Everything that is generated or attacked in a demonstration.

    Attributes:
        run: the identity of the run.
        attempts, seed, max_tokens, prompt: the settings it was made with.
        letter: what each writer added to it.
        secret: answers to the planted secret's prefix.
        presence: AUC of telling the corpus's letters from others by the adapter without protection.
        num_members, num_nonmembers: the letters behind that.
    """

    run: str
    attempts: int
    seed: int
    max_tokens: int
    prompt: str
    letter: dict[LetterWriter, str]
    secret: SecretAnswers
    presence: Estimate
    num_members: int
    num_nonmembers: int


def gather_findings(folder: DemoFolder, settings: DemoSettings) -> DemoFindings:
    """Let the writers write and the attacks attack, or read what they did for the same run and settings.

    Raises:
        ReticentError: the run, its ledger or the letters cannot be read, or the budget is spent.
    """
    wanted = {"run": run_id(folder.run)} | {name: getattr(settings, name) for name in _SETTINGS}
    kept = _read(folder.findings)
    if kept is not None and kept.model_dump(include=set(wanted)) == wanted:
        return kept
    letters, held_out = read_letters(folder.letters, folder.truth), read_letters(folder.held_out, folder.held_out_truth)
    plain = PlainWriters(folder)
    with deploy(folder, ReleaseMechanism.MIXTURE) as deployment:
        letter = finish_letter(plain, deployment, settings.prompt, settings.max_tokens)
    secret = _ask(folder, plain, letters, settings)
    nonmembers = [each.text for each in held_out]
    members = [each.text for each in letters if not each.canaries][: len(nonmembers)]
    found = DemoFindings(
        **wanted,
        letter=letter,
        secret=secret,
        presence=measure_presence(folder, members, nonmembers, settings.seed),
        num_members=len(members),
        num_nonmembers=len(nonmembers),
    )
    atomic_write_bytes(folder.findings, (found.model_dump_json(indent=2) + "\n").encode())
    return found


def _ask(folder: DemoFolder, plain: PlainWriters, letters: tuple[Letter, ...], settings: DemoSettings) -> SecretAnswers:
    canary = next((canary for letter in letters for canary in letter.canaries), None)
    if canary is None:
        raise CorpusError(
            f"{folder.truth} names no planted secret; delete {folder.root} and run the demonstration again"
        )
    released = {}
    for mechanism in ReleaseMechanism:
        with deploy(folder, mechanism) as deployment:
            released[mechanism] = ask_for_secret(deployment, canary, settings.attempts, settings.max_tokens)
    return SecretAnswers(
        prefix=canary.prefix,
        secret=canary.secret,
        repetitions=canary.repetitions,
        unprotected=recite(plain, canary),
        released=released,
    )


def _read(path: Path) -> DemoFindings | None:
    """Read what is kept; None where nothing is, or another version wrote it."""
    try:
        return DemoFindings.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
