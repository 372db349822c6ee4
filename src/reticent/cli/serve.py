"""`reticent serve`: a run as an HTTP service with OpenAI's interface."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.api.deployments import DEFAULT_STEP_BUDGET, open_ledger, run_id
from reticent.api.settings import torch_dtype
from reticent.cli.command_options import takes_options
from reticent.cli.corpus_options import (
    CORPUS_ONLY,
    REALISED_WORLD_ONLY,
    CorpusOptions,
    announce_corpus_deployment,
    refuse_options_of_the_other,
)
from reticent.cli.deployment import (
    Charge,
    DatabaseUrl,
    Drafts,
    Release,
    RunArgument,
    StepBudget,
    TotalBudget,
    announce_deployment,
)
from reticent.cli.output import notes
from reticent.cli.serve_options import (
    CONNECTIONS,
    LIMITS,
    Addresses,
    BodyTimeout,
    DefaultMaxTokens,
    DrainSeconds,
    HeadTimeout,
    MaxAnswers,
    MaxBodyBytes,
    MaxConcurrent,
    MaxConnections,
    MaxPromptTokens,
    MaxQueue,
    MaxTokens,
    TrustedProxies,
    WriteTimeout,
)
from reticent.cli.worlds import DType
from reticent.decoding.votes import Decoder, DecodingSettings, require_candidates
from reticent.dp.defaults import DEFAULT_CANDIDATES, LARGEST_DEFAULT_DELTA
from reticent.errors import InvalidValueError
from reticent.guarantees import Guarantee
from reticent.pac.mechanism import DEFAULT_RELEASE
from reticent.server.settings import ConnectionLimits, Limits, OnExhausted, ServerSettings

if TYPE_CHECKING:
    import torch

    from reticent.decoding.aggregates import CorpusDecoding
    from reticent.engine.engine import Engine
    from reticent.ledger.corpus_store import CorpusLedger
    from reticent.ledger.served_corpora import ServedCorpus
    from reticent.ledger.store import Ledger
    from reticent.models.base import LanguageModel
    from reticent.worlds.manifest import Manifest
    from reticent.worlds.places import Capacity


@dataclass(frozen=True)
class ServeCommand(CorpusOptions):
    """The options of `reticent serve`."""

    run: RunArgument
    step_budget: StepBudget = None
    total_budget: TotalBudget = None
    database_url: DatabaseUrl = None
    host: Annotated[str, typer.Option(help="Address to bind to; loopback only while there is no API key.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind to.")] = 8000
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name for clients; the run directory's unless given.")
    ] = None
    on_exhausted: Annotated[
        OnExhausted, typer.Option(help="Once the budget is spent: refuse, or let the public model continue alone.")
    ] = OnExhausted.REFUSE
    decoder: Annotated[Decoder | None, typer.Option(help="How worlds vote; gumbel unless given.")] = None
    release: Release = None
    charging: Charge = None
    temperature_default: Annotated[
        float | None, typer.Option(help="Temperature where a request names none; 1 unless given.")
    ] = None
    drafts: Drafts = 0
    max_concurrent: MaxConcurrent = LIMITS.max_concurrent
    max_queue: MaxQueue = LIMITS.max_queue
    max_answers: MaxAnswers = LIMITS.max_answers
    max_tokens: MaxTokens = LIMITS.max_tokens
    max_prompt_tokens: MaxPromptTokens = LIMITS.max_prompt_tokens
    max_body_bytes: MaxBodyBytes = LIMITS.max_body_bytes
    default_max_tokens: DefaultMaxTokens = LIMITS.default_max_tokens
    refuse_seeds: Annotated[
        bool, typer.Option("--refuse-seeds", help="Refuse clients' seeds, which make it cheap to probe for dissent.")
    ] = False
    beside_other_guarantee: Annotated[
        bool,
        typer.Option(
            "--beside-other-guarantee",
            help="Serve although the same corpus was served under the other guarantee: say that others see it.",
        ),
    ] = False
    max_connections: MaxConnections = CONNECTIONS.max_connections
    head_timeout: HeadTimeout = CONNECTIONS.head_seconds
    body_timeout: BodyTimeout = CONNECTIONS.body_seconds
    write_timeout: WriteTimeout = CONNECTIONS.write_seconds
    trusted_proxy: TrustedProxies = None
    log_addresses: Addresses = CONNECTIONS.addresses
    drain_seconds: DrainSeconds = 30.0
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Write prompts and answers to the log. They may be personal data.")
    ] = False
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu"

    @property
    def decoding(self) -> DecodingSettings:
        """Settings of a realised-world deployment's answers."""
        return DecodingSettings(
            self.decoder or Decoder.GUMBEL,
            DEFAULT_STEP_BUDGET if self.step_budget is None else self.step_budget,
            1.0 if self.temperature_default is None else self.temperature_default,
            DEFAULT_CANDIDATES if self.candidates is None else self.candidates,
            self.release or DEFAULT_RELEASE,
        )

    def settings(
        self, decoding: "DecodingSettings | CorpusDecoding", delta: float = LARGEST_DEFAULT_DELTA
    ) -> ServerSettings:
        """Settings of the server."""
        limits = Limits(
            max_concurrent=self.max_concurrent,
            max_queue=self.max_queue,
            max_answers=self.max_answers,
            max_tokens=self.max_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            max_body_bytes=self.max_body_bytes,
            default_max_tokens=self.default_max_tokens,
        )
        connections = ConnectionLimits(
            self.max_connections,
            self.head_timeout,
            self.body_timeout,
            self.write_timeout,
            CONNECTIONS.trusted_proxies if self.trusted_proxy is None else tuple(self.trusted_proxy),
            self.log_addresses,
        )
        return ServerSettings(
            self.name or self.run.resolve().name,
            decoding,
            self.on_exhausted,
            self.log_texts,
            limits,
            self.drafts,
            self.refuse_seeds,
            connections,
            self.drain_seconds,
            delta,
        )


@takes_options(ServeCommand)
def serve(asked: ServeCommand) -> None:
    """Serve a run over HTTP. OpenAI's clients work unchanged; every token is charged before it leaves.

    The first use draws the deployment's secret world, or fixes its constants where the run carries the corpus
    guarantee; later uses continue with those and the same account.
    """
    from reticent.worlds.manifest import read_manifest

    manifest = read_manifest(asked.run)
    if (capacity := manifest.capacity) is not None:
        _serve_corpus(asked, capacity)
    else:
        _serve_realised_world(asked)


def _serve_realised_world(asked: ServeCommand) -> None:
    from reticent.worlds.run_directory import RunDirectory

    refuse_options_of_the_other(asked, asked.run, Guarantee.REALISED_WORLD, (*CORPUS_ONLY, "temperature"))
    settings = asked.settings(asked.decoding)
    _require_server()
    opened = RunDirectory.open(asked.run)
    base = opened.base(asked.model)
    engine = opened.engine(base, _dtype(asked), asked.device)
    # Whatever can be refused is refused before a deployment is drawn.
    require_candidates(settings.decoding, engine.vocab_size)
    served = _served_corpus(asked, opened.manifest)
    with open_ledger(
        asked.run, opened.manifest.num_worlds, asked.total_budget, asked.database_url, asked.charging
    ) as ledger:
        announce_deployment(is_new=ledger.created, has_cap=ledger.curator.account.cap_units is not None)
        _run_server(asked, settings, base, engine, ledger, Guarantee.REALISED_WORLD, served)


def _serve_corpus(asked: ServeCommand, capacity: "Capacity") -> None:
    from reticent.api.corpus_deployments import open_corpus_ledger, settle_terms
    from reticent.decoding.aggregates import CorpusDecoding
    from reticent.worlds.assignment import Assignment
    from reticent.worlds.run_directory import RunDirectory

    refuse_options_of_the_other(asked, asked.run, Guarantee.CORPUS, (*REALISED_WORLD_ONLY, "temperature_default"))
    agreed = settle_terms(asked.run, capacity, asked.terms, asked.database_url)
    settings = asked.settings(CorpusDecoding.of(agreed.constants), agreed.delta)
    _require_server()
    opened = RunDirectory.open(asked.run, (Assignment.PLACES,))
    base = opened.base(asked.model)
    engine = opened.corpus_engine(base, agreed.constants.clip, _dtype(asked), asked.device)
    require_candidates(settings.decoding, engine.vocab_size)
    served = _served_corpus(asked, opened.manifest)
    with open_corpus_ledger(asked.run, agreed, asked.database_url) as ledger:
        announce_corpus_deployment(
            agreed.constants, is_new=ledger.created, has_cap=ledger.curator.account.cap_units is not None
        )
        _run_server(asked, settings, base, engine, ledger, Guarantee.CORPUS, served)


def _run_server(
    asked: ServeCommand,
    settings: ServerSettings,
    base: "LanguageModel",
    engine: "Engine",
    ledger: "Ledger | CorpusLedger",
    guarantee: Guarantee,
    served: "ServedCorpus | None",
) -> None:
    from reticent.ledger.api_keys import KeyTable
    from reticent.server.running import choose_host
    from reticent.server.running import serve as run_server
    from reticent.server.service import assemble

    bound_to, why = choose_host(asked.host, KeyTable(ledger.database))
    if why is not None:
        notes.print(why, highlight=False, soft_wrap=True)
    service = assemble(
        settings,
        run_id(asked.run),
        int(time.time()),
        engine,
        base.load_tokenizer(),
        ledger,
        ledger.database,
        base.declared_ends,
    )
    if served is not None:
        served.record(guarantee, beside_other=asked.beside_other_guarantee)
    run_server(service, bound_to, asked.port)


def _require_server() -> None:
    """Check that the packages of the server are installed.

    Raises:
        InvalidValueError: one is not.
    """
    try:
        from reticent.server import running, service  # noqa: F401 - to see that they can be imported
    except ModuleNotFoundError as error:
        raise InvalidValueError(
            f"the server needs {error.name}; run `{sys.executable} -m pip install 'reticent[server]'`"
        ) from None


def _served_corpus(asked: ServeCommand, manifest: "Manifest") -> "ServedCorpus | None":
    """The record of the run's corpus, which was not served under the other guarantee; None where no hash is known.

    Raises:
        InvalidValueError: it was, and the operator does not say that both may be.
    """
    from reticent.ledger.keys import Keyring
    from reticent.ledger.served_corpora import ServedCorpus

    if manifest.corpus is None or manifest.guarantee is None:
        return None
    served = ServedCorpus(Keyring.of_user(), manifest.corpus.corpus_hash)
    if not asked.beside_other_guarantee:
        served.require_only(manifest.guarantee)
    return served


def _dtype(asked: ServeCommand) -> "torch.dtype | None":
    return torch_dtype(None if asked.dtype is None else asked.dtype.value)
