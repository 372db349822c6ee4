"""The parts of a running server."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

from reticent.decoding.aggregates import CorpusDecoding
from reticent.decoding.engines import VoteEngine
from reticent.decoding.votes import DecodingSettings, require_candidates
from reticent.dp.curator import CorpusCurator
from reticent.errors import InvalidValueError
from reticent.ledger.api_keys import KeyTable
from reticent.ledger.database import Database
from reticent.ledger.usage import UsageTable
from reticent.pac.curator import Curator
from reticent.server.auth import KeyDirectory
from reticent.server.corpus_figures import CorpusFigures
from reticent.server.figures import Figures
from reticent.server.key_watch import KeyWatch
from reticent.server.metering import Meters
from reticent.server.metrics import Metrics
from reticent.server.open_requests import OpenRequests
from reticent.server.prompts import Prompts
from reticent.server.realised_world_figures import RealisedWorldFigures
from reticent.server.releasing import AnyCurator
from reticent.server.scheduler import Batcher
from reticent.server.settings import OnExhausted, ServerSettings
from reticent.server.tokenising import Tokenising


class DeploymentLedger(Protocol):
    """A deployment's ledger, as the server needs it."""

    @property
    def curator(self) -> AnyCurator:
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
    figures: Figures
    metrics: Metrics
    batcher: Batcher[Any]

    @property
    def curator(self) -> AnyCurator:
        """The deployment's curator; only its account and counts may be read here."""
        return self.deployment.curator

    @property
    def fingerprint(self) -> str:
        """Tells clients which run answers; under the corpus guarantee, under which public constants.

        A run's identity follows from its corpus, so whoever knows all of it but one unit could try both.
        """
        curator = self.curator
        if not isinstance(curator, CorpusCurator):
            return f"fp_{self.run_id[:12]}"
        public = repr((self.settings.model_name, curator.settings))
        return f"fp_{hashlib.sha256(public.encode()).hexdigest()[:12]}"


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
    curator, usage = deployment.curator, UsageTable(database)
    decoding = _own_decoding(decoding, curator)
    require_candidates(decoding, engine.vocab_size)
    settings = replace(settings, decoding=decoding)
    figures = _figures_of(curator, settings)
    metrics = Metrics(curator, figures)
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
        figures=figures,
        metrics=metrics,
        batcher=batcher,
    )


def _own_decoding(asked: DecodingSettings | CorpusDecoding, curator: AnyCurator) -> DecodingSettings | CorpusDecoding:
    """The settings of answers; what a deployment keeps for its life stands above what a server was made with."""
    match asked, curator:
        case CorpusDecoding(), CorpusCurator(settings=constants):
            return CorpusDecoding.of(constants)
        case DecodingSettings(), Curator(charging_rule=rule):
            return replace(asked, charging_rule=rule)
        case _:
            raise InvalidValueError("the settings of the server are for the other guarantee than its deployment's")


def _figures_of(curator: AnyCurator, settings: ServerSettings) -> Figures:
    if isinstance(curator, CorpusCurator):
        return CorpusFigures(curator, settings.delta)
    assert isinstance(settings.decoding, DecodingSettings)
    return RealisedWorldFigures(curator, settings.decoding.charging)
