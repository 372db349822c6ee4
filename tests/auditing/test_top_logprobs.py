"""Servers that show the most likely next tokens: values within, bounds outside, and attacks on both."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
import torch
from fake_targets import Notes, random_texts
from test_audit_run import request
from text_server import TextServer, client_of
from tiny_models import build_tiny_model, byte_tokenizer, save_tiny_model

from reticent.auditing.attacks.min_k import min_k
from reticent.auditing.inputs.places import PlacedScorer
from reticent.auditing.run import run_audit
from reticent.auditing.targets.endpoint import TextOnlyScorer
from reticent.auditing.targets.endpoint_client import EndpointSettings
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import TargetOptions, open_target
from reticent.auditing.targets.top_logprobs import TopLogprobScorer, bounded_logp, probe_top_logprobs
from reticent.errors import AuditError, EndpointError
from reticent.protocols import TokenSignals
from reticent.text.template import TextTemplate

PLACES = 8
TEMPLATE = TextTemplate(max_tokens=60)


def logs(**shares):
    return {token.replace("_", " "): float(np.log(share)) for token, share in shares.items()}


def test_a_token_within_the_top_has_its_value_and_one_outside_the_least_upper_bound():
    assert bounded_logp([" b"], logs(_a=0.5, _b=0.3), 2) == (np.log(0.3), 1)
    assert bounded_logp(["b", " b"], logs(_a=0.5, _b=0.3), 2) == (np.log(0.3), 1), (
        "servers differ in how they write one"
    )
    value, rank = bounded_logp([" c"], logs(_a=0.5, _b=0.3), 2)
    assert (value, rank) == (pytest.approx(np.log(0.2), abs=1e-4), 2), "no more than what the others leave"
    assert bounded_logp([" c"], logs(_a=0.1, _b=0.05), 2) == (np.log(0.05), 2), "no more than the least of those shown"
    value, rank = bounded_logp([" c"], logs(_a=0.7, _b=0.3001), 2)
    assert np.isfinite(value), "rounded probabilities may sum to more than one"


@pytest.mark.parametrize("num_top", [1, 3, 10])
def test_bounds_are_never_below_the_truth_nor_are_the_scores_made_of_them(num_top):
    generator = np.random.default_rng(num_top)
    truth, bounds = [], []
    for _ in range(300):
        shares = generator.dirichlet(np.full(30, 0.3))
        order = np.argsort(-shares)
        top = {f"t{token}": float(np.log(shares[token])) for token in order[:num_top]}
        token = int(generator.integers(30))
        value, rank = bounded_logp([f"t{token}"], top, num_top)
        true_rank = int((shares > shares[token]).sum())
        assert value >= np.log(shares[token]) - 1e-12
        assert rank == min(true_rank, num_top)
        truth.append(np.log(shares[token]))
        bounds.append(value)
    hidden = np.full(300, np.nan)
    exact, bounded = (
        TokenSignals(np.array(values), hidden, hidden, hidden, np.zeros(300, dtype=np.int64))
        for values in (truth, bounds)
    )
    assert bounded.logp.mean() >= exact.logp.mean()
    assert min_k(bounded) >= min_k(exact)


class TopServer:
    """A completions server around a model, which shows the `most` most likely next tokens and echoes nothing."""

    def __init__(self, module, most=5):
        self._module, self._tokenizer, self._most = module, byte_tokenizer(), most
        self.requests = 0

    @torch.inference_mode()
    def answer(self, body):
        if body.get("echo") or body.get("logprobs", 0) > self._most:
            return None
        self.requests += 1
        ids = torch.tensor([self._tokenizer(body["prompt"])["input_ids"]])
        logp = self._module(input_ids=ids).logits[0, -1].double().log_softmax(-1)
        values, tokens = logp.topk(body.get("logprobs", 1))
        shown = {
            self._tokenizer.decode([token]): value
            for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
        }
        text = self._tokenizer.decode([int(tokens[0])])
        return {"choices": [{"text": text, "logprobs": {"top_logprobs": [shown]}}]}

    def __call__(self, http):
        found = self.answer(json.loads(http.content))
        return httpx.Response(400) if found is None else httpx.Response(200, json=found)


def scorer_of(module, server):
    local = ModelScorer(module, byte_tokenizer(), TEMPLATE, "base")
    client = client_of(server)
    return TopLogprobScorer(client, local, PLACES, probe_top_logprobs(client)), local


def test_signals_are_the_models_own_at_the_places_and_bounds_elsewhere():
    module = build_tiny_model("llama")
    texts = random_texts(4, 5, words=6)
    scorer, local = scorer_of(module, TopServer(module, most=20))
    assert scorer.num_top == 20
    exact = PlacedScorer(local, PLACES).score(texts)
    for found, true in zip(scorer.score(texts), exact, strict=True):
        assert found.num_tokens == true.num_tokens == PLACES
        within = found.rank < 20
        np.testing.assert_array_equal(within, true.rank < 20)
        np.testing.assert_allclose(found.logp[within], true.logp[within], atol=1e-4)
        assert (found.logp[~within] >= true.logp[~within]).all()
        # Parts of characters are written alike, and only one of them is seen.
        assert (found.rank[within] <= true.rank[within]).all()
    rows = [row for row in scorer.score(texts) if row is not None]
    assert scorer.share_outside(rows) == np.mean([(row.rank >= 20).mean() for row in exact])


@pytest.mark.parametrize(("most", "expected"), [(20, 20), (7, 5), (1, 1)])
def test_as_many_tokens_are_asked_for_as_the_server_shows(most, expected):
    assert probe_top_logprobs(client_of(TopServer(build_tiny_model("llama"), most)))[0] == expected


def test_a_server_that_shows_none_has_none_and_bad_ones_are_refused():
    assert probe_top_logprobs(client_of(TextServer())) is None
    bad = {"choices": [{"text": "a", "logprobs": {"top_logprobs": [{"a": 0.5}]}}]}
    with pytest.raises(EndpointError, match="positive or not finite"):
        probe_top_logprobs(client_of(lambda http: httpx.Response(200, json=bad)))


@pytest.fixture
def live():
    """A function that serves a model over HTTP, and returns the address."""
    running = []

    def serve(top_server):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                found = top_server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                data = json.dumps(found or {}).encode()
                self.send_response(400 if found is None else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_server_that_shows_its_top_is_audited_from_bounds_and_says_so(live, tmp_path):
    module = build_tiny_model("llama", seed=1)
    top_server = TopServer(module)
    url = live(top_server)
    save_tiny_model(tmp_path / "base", "llama")
    template = {"max_tokens": 60}
    settings = EndpointSettings("", num_places=PLACES)
    bare = open_target(url, TargetOptions("m", template=template, endpoint=settings))
    assert isinstance(bare.scorer, TextOnlyScorer)
    assert "a local one, whose tokenizer says where tokens end" in bare.warnings[0]
    options = TargetOptions("m", str(tmp_path / "base"), template, endpoint=settings)
    target = open_target(url, options)
    assert target.record["shows"] == "log-probabilities of the 5 most likely next tokens"
    members, nonmembers = random_texts(4, 1, words=6), random_texts(4, 2, words=6)
    top_server.requests = 0
    result = run_audit(request(tmp_path, target, "all", members, nonmembers), Notes())
    assert {attack.name for attack in result.attacks} == {"likelihood", "reference", "zlib", "min-k", "rmia"}
    assert top_server.requests == 8 * PLACES
    assert "lie outside the 5 that the server shows" in result.scoring["top"]
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert "every token's log-probability" in reasons["ez-mia"]
    assert "log-probabilities of a prompt" in reasons["recall"]
    again = run_audit(request(tmp_path, open_target(url, options), "all", members, nonmembers), Notes())
    assert again.attacks == result.attacks
    named = run_audit(request(tmp_path, target, "petal", members, nonmembers), Notes())
    assert [attack.name for attack in named.attacks] == ["petal"]
    with pytest.raises(AuditError, match="attack wbc cannot run on this target: it needs every token"):
        run_audit(request(tmp_path, target, "wbc", members, nonmembers), Notes())
