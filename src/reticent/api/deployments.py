"""A run's deployment: one secret world, one posterior, one account, and the tokens it releases.

A deployment holds its lock while it is open, so use it with `with`. Every token is charged, and the charge is durable
before the token is yielded.

| case | what happens |
|---|---|
| a setting, a budget or the run is refused | no secret world is drawn |
| another process, or another `Deployment`, holds the deployment | `DeploymentStateError` |
| the budget does not cover the next token's charge | the text so far, then `BudgetExhaustedError` |
| a charge cannot be made durable | `StorageError`; its token is not shown |
| an answer is iterated after the deployment was closed | `DeploymentStateError`; nothing is released |
"""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reticent import _validate
from reticent._files import sha256_of_file
from reticent.api.generation import Answer
from reticent.api.settings import DTypeName, torch_dtype
from reticent.decoding.votes import Decoder, DecodingSettings, require_candidates
from reticent.errors import RunDirectoryError
from reticent.pac.charging import ChargingRule

if TYPE_CHECKING:
    from reticent.ledger.reader import LedgerReader
    from reticent.ledger.store import Ledger

DEFAULT_STEP_BUDGET = 2.0**-32


@dataclass(frozen=True)
class DeploymentOptions:
    """Settings of a deployment for as long as it is open; `Run.deploy` describes each."""

    settings: DecodingSettings
    total_budget: float | None = None
    charging: ChargingRule | None = None
    drafts: int = 0
    model: str | None = None
    dtype: DTypeName | None = None
    device: str = "cpu"
    database_url: str | None = None


@dataclass(frozen=True)
class Bounds:
    """Bounds on what all releases of a deployment tell, together.

    Attributes:
        half_success: largest success in telling which half of the corpus a record is in (a guess: ½).
        world_success: largest success in naming the realised world (a guess: 1/m).
    """

    half_success: float
    world_success: float


class LoadedRun:
    """A run's models in memory, ready to be deployed. Whatever can be refused is refused before a secret is drawn.

    Attributes:
        num_worlds: m.

    Raises:
        InvalidValueError: a setting is out of range.
        ModelError, RunDirectoryError: the base is missing, the run is damaged, or nothing may be released from it.
    """

    def __init__(self, folder: Path, options: DeploymentOptions) -> None:
        from reticent.text.end_tokens import end_tokens
        from reticent.worlds.run_directory import RunDirectory

        _validate.integer_in_range("drafts", options.drafts, 0)
        dtype = torch_dtype(options.dtype)
        run = RunDirectory.open(folder)
        base = run.base(options.model)
        self._folder = folder
        self._options = options
        self._tokenizer = base.load_tokenizer()
        self._stop_tokens = end_tokens(self._tokenizer, base.declared_ends)
        self._engine = run.engine(base, dtype, options.device)
        self.num_worlds = run.manifest.num_worlds
        require_candidates(options.settings, self._engine.vocab_size)

    def check_prompt(self, prompt: str, max_tokens: int) -> None:
        """Refuse a prompt or a number of tokens that `generate` would refuse.

        Raises:
            InvalidValueError: a value is out of range, or the prompt leaves no room in the context window.
        """
        from reticent.decoding.generate import most_steps
        from reticent.text.tokenise import encode_prompt

        prompt_tokens = encode_prompt(self._tokenizer, prompt)
        most_steps(self._engine, prompt_tokens, self._options.settings, max_tokens, self._options.drafts)

    def deploy(self) -> "Deployment":
        """Open the run's deployment, which draws its secret world at the first use.

        Raises:
            InvalidValueError: the cap cannot be set, or the deployment charges by another rule.
            DeploymentStateError, StorageError: the ledger cannot be opened or written.
        """
        options = self._options
        ledger = open_ledger(
            self._folder, self.num_worlds, options.total_budget, options.database_url, options.charging
        )
        return Deployment(self, ledger)

    def release(self, ledger: "Ledger", prompt: str, max_tokens: int, seed: int | None) -> Answer:
        """Begin an answer whose tokens are released through a ledger; see `Deployment.generate`."""
        from reticent.decoding.generate import generate
        from reticent.randomness import PublicCoins
        from reticent.text.tokenise import encode_prompt

        settings = replace(self._options.settings, charging_rule=ledger.curator.charging_rule)
        coins = PublicCoins.fresh() if seed is None else PublicCoins.from_seed(seed, 0)
        tokens = generate(
            self._engine,
            encode_prompt(self._tokenizer, prompt),
            settings,
            ledger.curator,
            coins,
            f"local-{secrets.token_hex(8)}",
            max_tokens,
            self._stop_tokens,
            self._options.drafts,
        )
        coin_key = coins.key if settings.decoder is Decoder.GUMBEL else None
        return Answer(tokens, self._tokenizer, self._stop_tokens, coin_key)


class Deployment:
    """An open deployment; made by `Run.deploy`.

    For one thread at a time: releases are charged one after another. Answers may be iterated in turn.
    """

    def __init__(self, loaded: LoadedRun, ledger: "Ledger") -> None:
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
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._loaded.num_worlds

    @property
    def is_new(self) -> bool:
        """True if this opening drew the deployment's secret world."""
        return self._ledger.created

    @property
    def charging(self) -> ChargingRule:
        """The rule by which tokens are charged over the deployment's life."""
        return self._ledger.curator.charging_rule

    @property
    def spent(self) -> float:
        """Nats charged over the deployment's life."""
        return self._ledger.curator.account.spent_nats

    @property
    def total_budget(self) -> float | None:
        """The cap over the deployment's life in nats; None where there is none."""
        return self._ledger.curator.account.cap_nats

    @property
    def left(self) -> float | None:
        """Nats that may still be charged; None where there is no cap."""
        return self._ledger.curator.account.left_nats

    @property
    def tokens_released(self) -> int:
        """Tokens released over the deployment's life."""
        return self._ledger.curator.state.tokens_released

    def bounds(self) -> Bounds:
        """Bound what all releases so far tell about the realised world, together."""
        curator = self._ledger.curator
        return Bounds(curator.half_success, curator.world_success)

    def generate(self, prompt: str = "", *, max_tokens: int = 64, seed: int | None = None) -> Answer:
        """Release tokens that continue a prompt, one by one, while the answer is iterated.

        Args:
            prompt: the text to continue. May be empty where the tokenizer begins texts with a token.
            max_tokens: release at most this many tokens.
            seed: fixes the public coins, never the secret or the noise; fresh unless given.

        Raises:
            InvalidValueError: a value is out of range, or the prompt leaves no room in the context window.
            BudgetExhaustedError: while iterating, after the text so far, where the budget covers no further token.
            StorageError: while iterating, where a charge cannot be made durable; the token is not shown.
        """
        return self._loaded.release(self._ledger, prompt, max_tokens, seed)

    def __repr__(self) -> str:
        # The curator's state holds the secret, so only the ledger's place is shown.
        return f"Deployment({self._ledger!r})"


def run_id(run_dir: Path) -> str:
    """Return the identity of a run: the SHA-256 of its manifest, which names every other file by hash.

    Raises:
        RunDirectoryError: there is no manifest.
    """
    manifest = run_dir / "manifest.json"
    try:
        return sha256_of_file(manifest)
    except OSError as error:
        raise RunDirectoryError(
            f"{run_dir} is no run directory: cannot read {manifest.name} ({error.strerror}); "
            "build one with `reticent worlds build`"
        ) from error


def open_ledger(
    run_dir: Path,
    num_worlds: int,
    total_budget: float | None,
    database_url: str | None,
    charging: ChargingRule | None = None,
) -> "Ledger":
    """Open the ledger of a run's deployment, which is created at its first use; it holds the deployment's locks.

    Raises:
        InvalidValueError: `total_budget` is above the cap that was set, or below what is spent; or the deployment
            charges by another rule than `charging`.
        DeploymentStateError, StorageError: the ledger cannot be opened or written.
    """
    from reticent.ledger.keys import Keyring
    from reticent.ledger.store import Ledger
    from reticent.randomness import SystemNoise

    return Ledger.open(
        run_dir,
        run_id(run_dir),
        num_worlds,
        Keyring.of_user(),
        database_url=database_url,
        total_budget=total_budget,
        charging_rule=charging,
        noise=SystemNoise(),
    )


def read_ledger(run_dir: Path, database_url: str | None) -> "LedgerReader":
    """Return a reader of a run's ledger, which needs no lock; use it with `with`.

    Raises:
        DeploymentStateError, StorageError: as for `LedgerReader`.
    """
    from reticent.ledger.database import Database
    from reticent.ledger.keys import Keyring
    from reticent.ledger.reader import LedgerReader

    database = Database.of_run(run_dir, database_url)
    return LedgerReader(run_dir, run_id(run_dir), Keyring.of_user(), database)
