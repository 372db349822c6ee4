"""Deployments of runs that carry the corpus guarantee: constants and caps as a caller writes them, and the ledger.

| case | what happens |
|---|---|
| a new deployment, and a constant is not given | its default |
| a deployment exists, and a constant is not given | the one it has |
| a deployment exists, and another constant is given | `InvalidValueError` |
"""

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reticent import _validate
from reticent.api.deployments import run_id
from reticent.api.generation import CorpusAnswer
from reticent.api.settings import DTypeName, torch_dtype
from reticent.decoding.aggregates import CorpusDecoding
from reticent.decoding.corpus_generate import generate_from_corpus
from reticent.decoding.generate import most_steps
from reticent.decoding.votes import require_candidates
from reticent.dp.curator import CorpusState
from reticent.dp.defaults import DEFAULT_CANDIDATES, DEFAULT_CLIP, DEFAULT_GAIN, DEFAULT_TEMPERATURE
from reticent.dp.plan import CorpusBound, check_delta, default_delta
from reticent.dp.relations import relation_for
from reticent.dp.release import CorpusSettings

if TYPE_CHECKING:
    from reticent.ledger.corpus_store import CorpusLedger
    from reticent.worlds.places import Capacity


@dataclass(frozen=True, kw_only=True)
class CorpusTerms:
    """The terms of a corpus deployment, as a caller writes them.

    Attributes:
        bound: on everything it ever releases; its cap may be set or lowered later, never raised.
        delta: δ at which ε is stated, below one over the number of places; as a plan unless given.
        clip, gain, temperature, candidates: constants, chosen when the deployment is created, for its whole life; what
            it has, or a default, unless given.
    """

    bound: CorpusBound = field(default_factory=CorpusBound)
    delta: float | None = None
    clip: float | None = None
    gain: float | None = None
    temperature: float | None = None
    candidates: int | None = None


@dataclass(frozen=True)
class AgreedTerms:
    """The terms of a corpus deployment, complete and checked.

    Attributes:
        constants: of the deployment.
        delta: δ at which ε is stated.
        total_rho: the cap that is asked for, or None.
    """

    constants: CorpusSettings
    delta: float
    total_rho: float | None


def settle_terms(folder: Path, capacity: "Capacity", terms: CorpusTerms, database_url: str | None) -> AgreedTerms:
    """Complete terms with what the run's deployment has, or with defaults where there is none yet.

    Raises:
        InvalidValueError: a value is out of range.
        DeploymentStateError, StorageError: the ledger cannot be read.
    """
    from reticent.ledger.corpus_store import deployed_constants

    places = capacity.num_places
    delta = default_delta(places) if terms.delta is None else check_delta(terms.delta, places)
    kept = deployed_constants(folder, database_url) or CorpusSettings(
        DEFAULT_CLIP,
        DEFAULT_GAIN,
        DEFAULT_TEMPERATURE,
        DEFAULT_CANDIDATES,
        capacity.num_worlds,
        relation_for(capacity.places),
    )
    constants = replace(
        kept,
        clip=kept.clip if terms.clip is None else terms.clip,
        gain=kept.gain if terms.gain is None else terms.gain,
        temperature=kept.temperature if terms.temperature is None else terms.temperature,
        num_candidates=kept.num_candidates if terms.candidates is None else terms.candidates,
    )
    return AgreedTerms(constants, delta, terms.bound.rho(delta))


def open_corpus_ledger(folder: Path, agreed: AgreedTerms, database_url: str | None) -> "CorpusLedger":
    """Open the ledger of a run's corpus deployment, which is created at its first use; it holds the deployment's locks.

    Raises:
        InvalidValueError: the cap is above the one that was set or below what is spent, or other constants were.
        DeploymentStateError, StorageError: the ledger cannot be opened or written.
    """
    from reticent.ledger.corpus_store import CorpusLedger
    from reticent.ledger.keys import Keyring
    from reticent.randomness import SystemNoise

    return CorpusLedger.open(
        folder,
        run_id(folder),
        agreed.constants,
        Keyring.of_user(),
        database_url=database_url,
        total_rho=agreed.total_rho,
        bits=SystemNoise(),
    )


@dataclass(frozen=True, kw_only=True)
class CorpusDeploymentOptions:
    """Settings of a corpus deployment for as long as it is open; `Run.deploy_corpus` describes each."""

    terms: CorpusTerms = field(default_factory=CorpusTerms)
    drafts: int = 0
    model: str | None = None
    dtype: DTypeName | None = None
    device: str = "cpu"
    database_url: str | None = None


class LoadedCorpusRun:
    """A run with places in memory, ready to be deployed. Whatever can be refused is refused before it is.

    Attributes:
        num_worlds: m.

    Raises:
        InvalidValueError: a setting is out of range.
        ModelError, RunDirectoryError: the base is missing, the run is damaged, or carries another guarantee.
    """

    def __init__(self, folder: Path, options: CorpusDeploymentOptions) -> None:
        from reticent.text.end_tokens import end_tokens
        from reticent.worlds.assignment import Assignment
        from reticent.worlds.run_directory import RunDirectory

        _validate.integer_in_range("drafts", options.drafts, 0)
        dtype = torch_dtype(options.dtype)
        run = RunDirectory.open(folder, (Assignment.PLACES,))
        capacity = run.manifest.capacity
        assert capacity is not None, "a run with places says how many"
        self.agreed = settle_terms(folder, capacity, options.terms, options.database_url)
        base = run.base(options.model)
        self._folder = folder
        self._options = options
        self._tokenizer = base.load_tokenizer()
        self._stop_tokens = end_tokens(self._tokenizer, base.declared_ends)
        self._engine = run.corpus_engine(base, self.agreed.constants.clip, dtype, options.device)
        self.num_worlds = run.manifest.num_worlds
        require_candidates(CorpusDecoding.of(self.agreed.constants), self._engine.vocab_size)

    def check_prompt(self, prompt: str, max_tokens: int) -> None:
        """Refuse a prompt or a number of tokens that `generate` would refuse.

        Raises:
            InvalidValueError: a value is out of range, or the prompt leaves no room in the context window.
        """
        from reticent.text.tokenise import encode_prompt

        settings = CorpusDecoding.of(self.agreed.constants)
        most_steps(self._engine, encode_prompt(self._tokenizer, prompt), settings, max_tokens, self._options.drafts)

    def deploy(self) -> "CorpusDeployment":
        """Open the run's deployment, whose constants are fixed at the first use.

        Raises:
            InvalidValueError: the cap cannot be set, or the deployment has other constants.
            DeploymentStateError, StorageError: the ledger cannot be opened or written.
        """
        return CorpusDeployment(self, open_corpus_ledger(self._folder, self.agreed, self._options.database_url))

    def release(self, ledger: "CorpusLedger", prompt: str, max_tokens: int, temperature: float | None) -> CorpusAnswer:
        """Begin an answer whose tokens are released through a ledger; see `CorpusDeployment.generate`."""
        from reticent.text.tokenise import encode_prompt

        constants = ledger.curator.settings
        tokens = generate_from_corpus(
            self._engine,
            encode_prompt(self._tokenizer, prompt),
            CorpusDecoding(constants, constants.temperature if temperature is None else temperature),
            ledger.curator,
            f"local-{secrets.token_hex(8)}",
            max_tokens,
            self._stop_tokens,
            self._options.drafts,
        )
        return CorpusAnswer(tokens, self._tokenizer, self._stop_tokens)


class CorpusDeployment:
    """An open deployment of a run that carries the corpus guarantee; made by `Run.deploy_corpus`.

    It holds its lock while it is open, so use it with `with`. Every token is charged, durably, before it is drawn.
    """

    def __init__(self, loaded: LoadedCorpusRun, ledger: "CorpusLedger") -> None:
        self._loaded = loaded
        self._ledger = ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger and give up its lock; harmless when repeated."""
        self._ledger.close()

    @property
    def is_new(self) -> bool:
        """True if this opening fixed the deployment's constants."""
        return self._ledger.created

    @property
    def settings(self) -> CorpusSettings:
        """The constants of the deployment: clip, gain, temperature, candidates, worlds, neighbouring relation."""
        return self._ledger.curator.settings

    @property
    def state(self) -> CorpusState:
        """The state of the deployment: constants, tokens and charges."""
        return self._ledger.curator.state

    @property
    def tokens_released(self) -> int:
        """Tokens released over the deployment's life."""
        return self.state.tokens_released

    @property
    def tokens_left(self) -> int | None:
        """Tokens that the cap still allows; None where there is no cap."""
        return self._ledger.curator.tokens_left

    @property
    def spent(self) -> float:
        """ρ charged over the deployment's life."""
        return self.state.account.spent_rho

    @property
    def total_rho(self) -> float | None:
        """The cap over the deployment's life as ρ; None where there is none."""
        return self.state.account.cap_rho

    @property
    def delta(self) -> float:
        """δ at which `epsilon` is stated."""
        return self._loaded.agreed.delta

    @property
    def epsilon(self) -> float:
        """ε of all tokens so far, at `delta`."""
        return self.state.account.epsilon(self.delta)

    @property
    def membership_success(self) -> float:
        """Bound on telling whether a unit is in the corpus, from all tokens so far; a guess has ½."""
        return self.state.account.membership_success

    def generate(self, prompt: str = "", *, max_tokens: int = 64, temperature: float | None = None) -> CorpusAnswer:
        """Release tokens that continue a prompt, one by one, while the answer is iterated.

        Args:
            prompt: the text to continue. May be empty where the tokenizer begins texts with a token.
            max_tokens: release at most this many tokens.
            temperature: divides the public model's scores alone, at the same charge; the deployment's unless given.

        Raises:
            InvalidValueError: a value is out of range, or the prompt leaves no room in the context window.
            BudgetExhaustedError: while iterating, after the text so far, where the budget covers no further token.
            StorageError: while iterating, where a charge cannot be made durable; nothing is drawn.
        """
        return self._loaded.release(self._ledger, prompt, max_tokens, temperature)

    def __repr__(self) -> str:
        return f"CorpusDeployment({self._ledger!r})"
