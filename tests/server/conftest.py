"""A small run, and live servers over it: uvicorn on a port of its own, a ledger of its own, real HTTP."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from openai import OpenAI
from server.engine_parts import Arithmetic, Recorder, make_curator
from server.processes import Serving
from worlds.small_runs import Silent, small_request, write_corpus

from reticent.decoding.aggregates import CorpusDecoding
from reticent.decoding.logit_votes import aggregates_from_logits
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.dp.accounting import units_to_rho
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings
from reticent.ledger.api_keys import KeyTable, Scope
from reticent.ledger.corpus_store import CorpusLedger
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.randomness import SystemNoise
from reticent.server.app import create_app
from reticent.server.scheduler import Batcher
from reticent.server.service import Service, assemble
from reticent.server.settings import Limits, OnExhausted, ServerSettings
from reticent.worlds.build import build_run
from reticent.worlds.places import Capacity
from reticent.worlds.run_directory import RunDirectory

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'developer' %}{{ raise_exception('no developers here') }}{% endif %}"
    "{{ message.role[0] }}:{{ message.content }}\n{% endfor %}a:"
)
STEP_BUDGET = 2.0**-32


@pytest.fixture(scope="session")
def served_run(tmp_path_factory, tiny_llama_folder) -> Path:
    folder = tmp_path_factory.mktemp("served")
    out = folder / "run"
    build_run(small_request(write_corpus(folder / "notes.jsonl"), tiny_llama_folder, out), Silent())
    return out


@dataclass
class Parts:
    ensemble: Any
    tokenizer: Any
    num_worlds: int
    declared_ends: frozenset[int] = frozenset()


@pytest.fixture(scope="session")
def parts(served_run) -> Parts:
    run = RunDirectory.open(served_run)
    base = run.base()
    return Parts(run.engine(base), base.load_tokenizer(), run.manifest.num_worlds)


class Aggregating:
    """An engine that adds up votes from its own logits, all worlds occupied."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def aggregates(self, contexts, settings):
        return aggregates_from_logits(self._engine, contexts, settings, np.ones(self.num_worlds, np.bool_))


@dataclass
class Live:
    url: str
    service: Service
    ledger: Ledger | CorpusLedger
    keys: KeyTable

    def http(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)

    def openai(self, key: str = "none", **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60, **options)

    def key(self, name: str = "a client", *scopes: Scope, **quotas: Any) -> str:
        _, text = self.keys.create(name, scopes or (Scope.GENERATE,), **quotas)
        # The directory may be up to a second old.
        self.service.keys._read_at = -float("inf")
        return text


@contextlib.contextmanager
def run_uvicorn(app):
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


def launcher(stack, parts, folder):
    """A function that starts a server whose ledger lies in `folder`; the stack stops it."""

    def start(
        *,
        total_budget=None,
        charging_rule=None,
        chat_template=CHAT_TEMPLATE,
        decoder=Decoder.GUMBEL,
        on_exhausted=OnExhausted.REFUSE,
        log_texts=False,
        refuse_seeds=False,
        database_url=None,
        **limits,
    ) -> Live:
        keyring = Keyring(folder / "keys", {})
        ledger = stack.enter_context(
            Ledger.open(
                folder,
                "run",
                parts.num_worlds,
                keyring,
                database_url=database_url,
                total_budget=total_budget,
                charging_rule=charging_rule,
                noise=SystemNoise(),
            )
        )
        tokenizer = copy.copy(parts.tokenizer)
        tokenizer.chat_template = chat_template
        decoding = DecodingSettings(decoder, STEP_BUDGET)
        settings = ServerSettings(
            "tiny", decoding, on_exhausted, log_texts, Limits(**limits), refuse_seeds=refuse_seeds
        )
        service = assemble(
            settings,
            "0123456789abcdef",
            int(time.time()),
            parts.ensemble,
            tokenizer,
            ledger,
            ledger.database,
            parts.declared_ends,
        )
        url = stack.enter_context(run_uvicorn(create_app(service, drain_seconds=10)))
        return Live(url, service, ledger, KeyTable(ledger.database))

    return start


def corpus_constants(num_worlds, gain=2.0):
    return CorpusSettings(0.1, gain, 1.25, 8, num_worlds, Relation.ADD_REMOVE)


def corpus_launcher(stack, parts, folder):
    """A function that starts a server of a corpus deployment whose ledger lies in `folder`; the stack stops it."""

    def start(*, tokens=None, on_exhausted=OnExhausted.REFUSE, delta=1e-6, database_url=None, **limits) -> Live:
        constants = corpus_constants(parts.num_worlds)
        ledger = stack.enter_context(
            CorpusLedger.open(
                folder,
                "run",
                constants,
                Keyring(folder / "keys", {}),
                database_url=database_url,
                total_rho=None if tokens is None else units_to_rho(constants.charge_units) * (tokens + 0.5),
                bits=SystemNoise(),
            )
        )
        settings = ServerSettings(
            "tiny", CorpusDecoding.of(constants), on_exhausted, limits=Limits(**limits), delta=delta
        )
        service = assemble(
            settings,
            "0123456789abcdef",
            int(time.time()),
            Aggregating(parts.ensemble),
            parts.tokenizer,
            ledger,
            ledger.database,
            parts.declared_ends,
        )
        url = stack.enter_context(run_uvicorn(create_app(service, drain_seconds=10)))
        return Live(url, service, ledger, KeyTable(ledger.database))

    return start


@pytest.fixture
def live_corpus(parts, tmp_path):
    """A function that starts a server of a corpus deployment of this test's own."""
    with contextlib.ExitStack() as stack:
        yield corpus_launcher(stack, parts, tmp_path)


@pytest.fixture
def live(parts, tmp_path):
    """A function that starts a server of this test's own."""
    with contextlib.ExitStack() as stack:
        yield launcher(stack, parts, tmp_path)


@pytest.fixture
def started():
    batchers = []

    def start(ensemble=None, curator=None, observer=None, max_concurrent=8, max_queue=64, **options):
        batcher = Batcher(
            ensemble or Arithmetic(), curator or make_curator(), observer or Recorder(),
            max_concurrent=max_concurrent, max_queue=max_queue, **options,
        )  # fmt: skip
        batcher.start()
        batchers.append(batcher)
        return batcher

    yield start
    for batcher in batchers:
        batcher.close(0)


@pytest.fixture(scope="session")
def shared(parts, tmp_path_factory):
    """A server for tests that leave it as it was: no cap, no keys."""
    with contextlib.ExitStack() as stack:
        yield launcher(stack, parts, tmp_path_factory.mktemp("shared"))()


def copy_of(run, folder):
    """A copy of a run in `folder`, and an environment with a keyring of its own."""
    copied = folder / "run"
    copied.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (copied / path.name).hardlink_to(path)
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder / "config"), "OMP_NUM_THREADS": "1"}
    environment.pop("RETICENT_KEY", None)
    return copied, environment


@contextlib.contextmanager
def serving(run, environment):
    """A function that starts `reticent serve` on a run, in a process of its own."""
    script = Path(__file__).with_name("launch_commands.py")
    with subprocess.Popen(
        [sys.executable, script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        errors = []
        reader = threading.Thread(target=lambda: errors.extend(launcher.stderr), daemon=True)
        reader.start()
        yield lambda *options: Serving(launcher, errors, run, options)
        # A server that a failed test left behind would hold the pipes open.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
            for child in children:
                os.kill(int(child), signal.SIGKILL)
        launcher.stdin.close()
        launcher.kill()
        reader.join(10)


@pytest.fixture
def deployment(served_run, tmp_path):
    """A copy of the run with a ledger of its own, and an environment with a keyring of its own."""
    return copy_of(served_run, tmp_path)


@pytest.fixture
def serve(deployment):
    """A function that starts `reticent serve` on the deployment, in a process of its own."""
    with serving(*deployment) as start:
        yield start


@pytest.fixture(scope="session")
def served_corpus_run(served_run, tiny_llama_folder) -> Path:
    """A run with places over the corpus of `served_run`."""
    folder, capacity = served_run.parent, Capacity(12, 1)
    out = folder / "corpus-run"
    request = small_request(folder / "notes.jsonl", tiny_llama_folder, out, num_worlds=12, capacity=capacity)
    build_run(request, Silent())
    return out


@pytest.fixture
def corpus_deployment(served_corpus_run, tmp_path):
    """The same for a run that carries the corpus guarantee."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    run, environment = copy_of(served_corpus_run, folder)
    return run, environment | {"XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def serve_corpus(corpus_deployment):
    """A function that starts `reticent serve` on the corpus deployment, in a process of its own."""
    with serving(*corpus_deployment) as start:
        yield start


@pytest.fixture
def halt_engine(monkeypatch):
    """A function that makes a server wait after some tokens of an answer until the event that it returns is set.

    No token ends an answer there, so that the answer is as long as its request allows. Several tokens are needed for
    text to come: the first ones may be parts of one character.
    """

    def halt(server: Live, tokens: int = 20) -> threading.Event:
        engine, go_on, steps = server.service.batcher._engine, threading.Event(), []
        extend = engine.extend

        def extend_later(*arguments, **options):
            steps.append(1)
            if len(steps) == tokens:
                assert go_on.wait(60), "nobody let the engine go on"
            return extend(*arguments, **options)

        monkeypatch.setattr(engine, "extend", extend_later)
        monkeypatch.setattr(server.service.prompts, "stop_tokens", frozenset())
        return go_on

    return halt
