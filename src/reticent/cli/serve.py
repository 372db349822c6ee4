"""`reticent serve`: a run as an HTTP service with OpenAI's interface."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from reticent.api.deployments import DEFAULT_STEP_BUDGET, open_ledger, run_id
from reticent.api.settings import torch_dtype
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
from reticent.errors import InvalidValueError
from reticent.pac.charging import ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE
from reticent.server.settings import ConnectionLimits, Limits, OnExhausted, ServerSettings


def serve(
    run: RunArgument,
    step_budget: StepBudget = DEFAULT_STEP_BUDGET,
    total_budget: TotalBudget = None,
    database_url: DatabaseUrl = None,
    host: Annotated[
        str, typer.Option(help="Address to bind to; loopback only while there is no API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to bind to.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name for clients; the run directory's unless given.")
    ] = None,
    on_exhausted: Annotated[
        OnExhausted, typer.Option(help="Once the budget is spent: refuse, or let the public model continue alone.")
    ] = OnExhausted.REFUSE,
    decoder: Annotated[Decoder, typer.Option(help="How worlds vote.")] = Decoder.GUMBEL,
    release: Release = DEFAULT_RELEASE,
    charging: Charge = None,
    temperature_default: Annotated[float, typer.Option(help="Temperature where a request names none.")] = 1.0,
    candidates: Annotated[int, typer.Option(help="Tokens the public model nominates at each step, k.")] = 200,
    drafts: Drafts = 0,
    max_concurrent: MaxConcurrent = LIMITS.max_concurrent,
    max_queue: MaxQueue = LIMITS.max_queue,
    max_answers: MaxAnswers = LIMITS.max_answers,
    max_tokens: MaxTokens = LIMITS.max_tokens,
    max_prompt_tokens: MaxPromptTokens = LIMITS.max_prompt_tokens,
    max_body_bytes: MaxBodyBytes = LIMITS.max_body_bytes,
    default_max_tokens: DefaultMaxTokens = LIMITS.default_max_tokens,
    refuse_seeds: Annotated[
        bool, typer.Option("--refuse-seeds", help="Refuse clients' seeds, which make it cheap to probe for dissent.")
    ] = False,
    max_connections: MaxConnections = CONNECTIONS.max_connections,
    head_timeout: HeadTimeout = CONNECTIONS.head_seconds,
    body_timeout: BodyTimeout = CONNECTIONS.body_seconds,
    write_timeout: WriteTimeout = CONNECTIONS.write_seconds,
    trusted_proxy: TrustedProxies = None,
    log_addresses: Addresses = CONNECTIONS.addresses,
    drain_seconds: DrainSeconds = 30.0,
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Write prompts and answers to the log. They may be personal data.")
    ] = False,
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None,
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu",
) -> None:
    """Serve a run over HTTP. OpenAI's clients work unchanged; every token is charged before it leaves.

    The first use draws the deployment's secret world; later uses continue with the same secret, posterior and account.
    """
    limits = Limits(
        max_concurrent=max_concurrent,
        max_queue=max_queue,
        max_answers=max_answers,
        max_tokens=max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        max_body_bytes=max_body_bytes,
        default_max_tokens=default_max_tokens,
    )
    connections = ConnectionLimits(
        max_connections,
        head_timeout,
        body_timeout,
        write_timeout,
        CONNECTIONS.trusted_proxies if trusted_proxy is None else tuple(trusted_proxy),
        log_addresses,
    )
    decoding = DecodingSettings(decoder, step_budget, temperature_default, candidates, release)
    settings = ServerSettings(
        name or run.resolve().name,
        decoding,
        on_exhausted,
        log_texts,
        limits,
        drafts,
        refuse_seeds,
        connections,
        drain_seconds,
    )
    _serve(run, settings, total_budget, charging, database_url, host, port, model, dtype, device)


def _serve(
    run: Path,
    settings: ServerSettings,
    total_budget: float | None,
    charging: ChargingRule | None,
    database_url: str | None,
    host: str,
    port: int,
    model: str | None,
    dtype: DType | None,
    device: str,
) -> None:
    try:
        from reticent.server.running import choose_host
        from reticent.server.running import serve as run_server
        from reticent.server.service import assemble
    except ModuleNotFoundError as error:
        raise InvalidValueError(
            f"the server needs {error.name}; run `{sys.executable} -m pip install 'reticent[server]'`"
        ) from None
    from reticent.ledger.api_keys import KeyTable
    from reticent.worlds.run_directory import RunDirectory

    opened = RunDirectory.open(run)
    base = opened.base(model)
    tokenizer = base.load_tokenizer()
    engine = opened.engine(base, torch_dtype(None if dtype is None else dtype.value), device)
    identity = run_id(run)
    # Whatever can be refused is refused before a deployment is drawn.
    require_candidates(settings.decoding, engine.vocab_size)
    with open_ledger(run, opened.manifest.num_worlds, total_budget, database_url, charging) as ledger:
        announce_deployment(is_new=ledger.created, has_cap=ledger.curator.account.cap_units is not None)
        bound_to, why = choose_host(host, KeyTable(ledger.database))
        if why is not None:
            notes.print(why, highlight=False, soft_wrap=True)
        service = assemble(
            settings, identity, int(time.time()), engine, tokenizer, ledger, ledger.database, base.declared_ends
        )
        run_server(service, bound_to, port)
