"""Row on the server: a token over HTTP with the ledger on disk, against the same token from the engine alone.

Each side computes on its own thread that does nothing else: threads differ in their pools for products and in
where their memory comes from, which can be worth more than the server costs. The engine alone on one such thread is
then compared with itself on another: what that differs from 1 by, the row cannot tell apart.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import uvicorn

from benchmarks import parity
from benchmarks.decoding import STEP_BUDGET, PrivateStream, start_of
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import time_in_turn
from benchmarks.workspace import Workspace
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reader import LedgerReader
from reticent.ledger.store import Ledger
from reticent.pac.accounting import charge_units
from reticent.randomness import SystemNoise
from reticent.server.app import create_app
from reticent.server.service import Service, assemble
from reticent.server.settings import ServerSettings

_UNANIMOUS = 0.0
"""Deviation of B's entries with which all worlds vote alike, so that nothing is drawn and both sides must say the same.

Any other lets rounding to bfloat16 part the votes where two candidates are close. The engine does the same work for it.
"""
_RUN_ID = "benchmark"
_TIMEOUT_S = 600.0


class Served:
    """A live server over an engine, its ledger in a SQLite file of `folder`, and one client of it."""

    def __init__(self, client: httpx.Client, folder: Path) -> None:
        self._client = client
        self._folder = folder

    def answer(self, prompt: list[int], num_tokens: int) -> str:
        """Ask for a stream of greedy tokens and return its text."""
        body = {"model": _RUN_ID, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "stream": True}
        with self._client.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
        return "".join(choice["text"] for chunk in map(json.loads, data) for choice in chunk.get("choices", ()))

    def charged(self) -> tuple[int, int]:
        """Releases and units in the ledger as it lies on disk, its chain replayed."""
        keyring, database = _keyring(self._folder), Database.of_run(self._folder)
        with LedgerReader(self._folder, _RUN_ID, keyring, database) as reader:
            totals = reader.verify()
        return totals.releases, totals.units


@contextlib.contextmanager
def serve_engine(workspace: Workspace, engine: Engine, folder: Path) -> Iterator[Served]:
    """Serve an engine on a free port of the loopback interface, as `reticent serve` does."""
    tokenizer = workspace.base.load_tokenizer()
    # A token that ends the answer would leave the two sides unequal work.
    tokenizer.eos_token = None
    decoding = DecodingSettings(Decoder.GREEDY, STEP_BUDGET, num_candidates=workspace.sizes.num_candidates)
    with Ledger.open(folder, _RUN_ID, engine.num_worlds, _keyring(folder), noise=SystemNoise()) as ledger:
        service = assemble(
            ServerSettings(_RUN_ID, decoding), _RUN_ID, int(time.time()), engine, tokenizer, ledger, ledger.database
        )
        with _serve_on_free_port(service) as url, httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client:
            yield Served(client, folder)


def server_overhead(workspace: Workspace) -> Measured:
    """Milliseconds a token of whole answers, prompt included, asked for by one client."""
    sizes = workspace.sizes
    engine = Engine(workspace.decoder, workspace.adapters("attention", 12, deviation=_UNANIMOUS))
    num_tokens = sizes.answer_tokens
    prompt = start_of(workspace, num_tokens)
    folder = workspace.scratch / "serving"
    folder.mkdir()
    with serve_engine(workspace, engine, folder) as server, _make_thread() as first, _make_thread() as second:
        text = _check_answer(workspace, engine, server, prompt)

        def over_http() -> None:
            parity.require(server.answer(prompt, num_tokens) == text, "an answer changed while it was timed")

        def alone_on(thread: ThreadPoolExecutor) -> Callable[[], None]:
            def answer() -> None:
                # Nothing is returned, so that the caches are released on this thread too, as the server does.
                _generate_alone(workspace, engine, prompt)

            return lambda: thread.submit(answer).result()

        times = time_in_turn(over_http, alone_on(first), sizes.heavy_pairs)
        control = time_in_turn(alone_on(second), alone_on(first), sizes.heavy_pairs)
    notes = (
        "one client, greedy stream; client, server and engine share one process; the limit is a server for free; the "
        f"engine alone on one thread against itself on another: {control.ratio:.3f}, spread {control.spread:.3f}"
    )
    extra: dict[str, object] = {"control_ratio": control.ratio, "control_spread": control.spread}
    return Measured(times.scale(1 / num_tokens, 1 / num_tokens), 1.0, notes=notes, extra=extra)


def _make_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-alone")


def _generate_alone(workspace: Workspace, engine: Engine, prompt: list[int]) -> PrivateStream:
    """The tokens of one answer from engine, votes and curator, with a store in memory."""
    stream = PrivateStream(engine, prompt, workspace.sizes.num_candidates)
    while len(stream.released) < workspace.sizes.answer_tokens:
        stream.step()
    return stream


def _check_answer(workspace: Workspace, engine: Engine, server: Served, prompt: list[int]) -> str:
    """The answer's text; raises `ParityError` unless the server says and charges what the engine alone does."""
    alone = _generate_alone(workspace, engine, prompt)
    parity.require(alone.dissent == 0, "worlds with equal adapters differ in their votes")
    expected: str = workspace.base.load_tokenizer().decode(alone.released, skip_special_tokens=True)
    num_tokens = len(alone.released)
    text = server.answer(prompt, num_tokens)
    parity.require(text == expected, f"the server's text {text!r} is not that of the engine alone, {expected!r}")
    charged, wanted = server.charged(), (num_tokens, num_tokens * charge_units(STEP_BUDGET))
    parity.require(charged == wanted, f"the ledger holds {charged} releases and units, the answer took {wanted}")
    return text


def _keyring(folder: Path) -> Keyring:
    return Keyring(folder / "keys", {})


@contextlib.contextmanager
def _serve_on_free_port(service: Service) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = create_app(service, drain_seconds=0)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


BENCHMARKS = (
    Benchmark(
        "server-overhead",
        "private token over HTTP, ledger in SQLite on disk, attention of the last 12 of 30 blocks",
        "the same token from engine, votes and curator alone",
        1.10,
        "<=",
        server_overhead,
        weight=80,
    ),
)
