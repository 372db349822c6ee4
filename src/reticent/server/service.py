"""The parts of a running server."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

from reticent.decoding.engines import VoteEngine
from reticent.decoding.votes import require_candidates
from reticent.ledger.api_keys import KeyTable
from reticent.ledger.database import Database
from reticent.ledger.usage import UsageTable
from reticent.pac.curator import Curator
from reticent.server.auth import KeyDirectory
from reticent.server.key_watch import KeyWatch
from reticent.server.metering import Meters
from reticent.server.metrics import Metrics
from reticent.server.open_requests import OpenRequests
from reticent.server.prompts import Prompts
from reticent.server.scheduler import Batcher
from reticent.server.settings import OnExhausted, ServerSettings
from reticent.server.tokenising import Tokenising


class DeploymentLedger(Protocol):
    """A deployment's ledger, as the server needs it."""

    @property
    def curator(self) -> Curator:
        """Releases tokens; for the engine's thread alone, but for reading its account and counts."""
        ...

    def healthy(self) -> bool:
        """True if the ledger can be written now."""
        ...


@dataclass(frozen=True)
class Service:
    """All parts of a running server; made by `assemble`.

    Attributes:
        settings: of the server.
        run_id: identity of the run that is served.
        started: seconds since 1970.
    """

    settings: ServerSettings
    run_id: str
    started: int
    deployment: DeploymentLedger
    usage: UsageTable
    prompts: Prompts
    tokenising: Tokenising
    keys: KeyDirectory
    meters: Meters
    key_watch: KeyWatch
    open_requests: OpenRequests
    metrics: Metrics
    batcher: Batcher[Any]

    @property
    def curator(self) -> Curator:
        """The deployment's curator; only its account and counts may be read here."""
        return self.deployment.curator

    @property
    def fingerprint(self) -> str:
        """Tells clients which run answers."""
        return f"fp_{self.run_id[:12]}"


def assemble(
    settings: ServerSettings,
    run_id: str,
    started: int,
    engine: VoteEngine[Any],
    tokenizer: Any,
    deployment: DeploymentLedger,
    database: Database,
    declared_ends: Collection[int] = (),
) -> Service:
    """Put a server's parts together.

    Args:
        settings: of the server.
        run_id: identity of the run.
        started: seconds since 1970.
        engine: the public model and all worlds.
        tokenizer: of the base model.
        deployment: the open ledger.
        database: where that ledger lies, for keys and counts.
        declared_ends: the model's own end tokens; see `models.BaseModel.declared_ends`.

    Raises:
        InvalidValueError: the settings do not fit the model.
        DeploymentStateError: the ledger counts tokens of API keys, and has none.
        StorageError: the database cannot be read.
    """
    limits, decoding = settings.limits, settings.decoding
    require_candidates(decoding, engine.vocab_size)
    # The rule is the deployment's, whatever the settings were made with.
    decoding = replace(decoding, charging_rule=deployment.curator.charging_rule)
    settings = replace(settings, decoding=decoding)
    curator, usage = deployment.curator, UsageTable(database)
    metrics = Metrics(curator, decoding.charging)
    batcher = Batcher(
        engine,
        curator,
        metrics,
        max_concurrent=limits.max_concurrent,
        max_queue=limits.max_queue,
        public_fallback=settings.on_exhausted is OnExhausted.PUBLIC,
    )
    metrics.watch(batcher)
    spending = usage.spending_by_key()
    keys = KeyDirectory(KeyTable(database), had_keys=bool(spending))
    keys.current()
    meters = Meters(spending)
    return Service(
        settings=settings,
        run_id=run_id,
        started=started,
        deployment=deployment,
        usage=usage,
        prompts=Prompts(tokenizer, engine.vocab_size, engine.context_length, limits.max_prompt_tokens, declared_ends),
        tokenising=Tokenising(limits.max_queue + limits.max_concurrent),
        keys=keys,
        meters=meters,
        key_watch=KeyWatch(keys, meters),
        open_requests=OpenRequests(),
        metrics=metrics,
        batcher=batcher,
    )
