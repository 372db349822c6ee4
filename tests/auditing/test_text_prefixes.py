"""ReCaLL on a server: a prefix sent as text, the text's own tokens found again behind it, and tokens of both."""

import json
import re

import httpx
import numpy as np
import pytest
from fake_targets import Notes
from test_audit_run import MEMBERS, NONMEMBERS, request
from text_server import client_of, text_target

from reticent.auditing.attacks.evidence import Missing
from reticent.auditing.attacks.recall import recall
from reticent.auditing.inputs.prefixes import PrefixedServer
from reticent.auditing.run import run_audit
from reticent.auditing.targets.endpoint import RemoteScorer
from reticent.auditing.targets.endpoint_client import RefusedRequestError
from reticent.errors import InvalidValueError
from reticent.text.template import TextTemplate

APART = re.compile(r"\n\n|\s?[^\s]+|\s")
TOGETHER = re.compile(r"\n\n[^\s]+|\s?[^\s]+|\s")


class Echo:
    """One token a word. A token has -1 nat alone, and -(1 + words of the prefix before its paragraph) behind one."""

    def __init__(self, pieces=APART, begin=None, most=10**9, known=()):
        self.pieces, self.begin, self.most, self.known = pieces, begin, most, tuple(known)
        self.prompts = []
        self.fault = None

    def __call__(self, http):
        body = json.loads(http.content)
        prompt = body["prompt"]
        self.prompts.append(prompt)
        if len(prompt) > self.most or self.fault:
            return httpx.Response(self.fault or 400)
        tokens = self.pieces.findall(prompt)
        assert "".join(tokens) == prompt
        paragraphs = prompt.split("\n\n")
        cost = 1.0 + sum(len(paragraph.split()) for paragraph in paragraphs[:-1])
        cost += paragraphs[-1] in self.known and len(paragraphs) > 1
        values = [-cost] * len(tokens)
        if self.begin is not None:
            tokens, values = [self.begin, *tokens], [None, *values]
        else:
            values[0] = None
        logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": None}
        choice = {"text": prompt, "logprobs": logprobs}
        return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": len(tokens)}})


def scorer_for(server, template=None):
    return RemoteScorer(client_of(server), template or TextTemplate())


@pytest.mark.parametrize("begin", [None, "<s>"])
def test_a_texts_own_tokens_are_found_behind_the_prefix(begin):
    scorer = scorer_for(Echo(begin=begin))
    assert scorer.scores_first_token == (begin is not None)
    alone, behind = scorer.signals("a b c"), scorer.signals_behind("x y\n\n", "a b c")
    assert alone.num_tokens == behind.num_tokens == (3 if begin else 2)
    assert set(behind.logp) == {-3.0}
    assert recall(behind, alone) == 3.0


@pytest.mark.parametrize("begin", [None, "<s>"])
def test_a_token_of_prefix_and_text_is_of_neither(begin):
    scorer = scorer_for(Echo(TOGETHER, begin))
    alone, behind = scorer.signals("a b c"), scorer.signals_behind("x y\n\n", "a b c")
    assert (alone.num_tokens, behind.num_tokens) == ((3, 2) if begin else (2, 2))
    assert recall(behind, alone) == 3.0


@pytest.mark.parametrize("begin", [None, "<s>"])
def test_a_text_is_cut_behind_the_prefix_where_it_is_cut_alone(begin):
    scorer = scorer_for(Echo(begin=begin), TextTemplate(max_tokens=3))
    assert scorer.signals("a b c d e").num_tokens == scorer.signals_behind("x y\n\n", "a b c d e").num_tokens == 2


def test_recall_leaves_the_first_token_out_of_both_and_refuses_other_tokens():
    one = scorer_for(Echo()).signals
    values = one("a b c d")
    assert recall(one("a b c"), values) == 1.0
    assert isinstance(recall(one("a b"), values), Missing)
    assert isinstance(recall(values, one("a b c")), Missing)


def test_tokens_that_do_not_spell_the_prompt_are_refused():
    class Garbled(Echo):
        def __call__(self, http):
            answer = super().__call__(http)
            content = answer.json()
            if answer.is_success:
                content["choices"][0]["logprobs"]["tokens"][-1] = "bytes:\\xe2"
            return httpx.Response(answer.status_code, json=content)

    with pytest.raises(RefusedRequestError, match="do not spell"):
        scorer_for(Garbled()).signals_behind("x\n\n", "a b")


def test_shots_are_halved_until_the_server_takes_them():
    shots = ["aa bb", "cc dd", "ee ff", "gg hh"]
    assert PrefixedServer(scorer_for(Echo()), shots, "text").num_shots == 4
    short = Echo(most=len("The quick brown fox jumps over the lazy dog, and the dog does not mind it at all."))
    long_text = "a " * 28
    prefixed = PrefixedServer(scorer_for(short), shots, long_text)
    assert prefixed.num_shots == 2
    prefixed.signals("ab cd")
    assert short.prompts[-1] == "aa bb\n\ncc dd\n\nab cd"
    prefixed.signals("cc dd")
    assert short.prompts[-1] == "aa bb\n\ncc dd", "a text is not part of its own prefix"
    with pytest.raises(InvalidValueError, match="takes no text of the prefix"):
        PrefixedServer(scorer_for(short), shots, "a " * 39)


def test_an_audit_of_a_server_that_echoes_has_recall(tmp_path):
    server = Echo(known=MEMBERS)
    result = run_audit(request(tmp_path, text_target(server), "all"), Notes())
    found = {attack.name: attack for attack in result.attacks}
    assert found["recall"].auc.value == 1.0
    assert (found["recall"].num_members, found["recall"].num_nonmembers) == (40, 30)
    assert found["likelihood"].auc.value == 0.5
    assert result.scoring["prefix"].startswith("10 non-members")
    assert all(np.isfinite(bin_edge) for bin_edge in found["recall"].histogram.edges)
    assert {prompt for prompt in server.prompts if prompt in NONMEMBERS} == set(NONMEMBERS)


def test_a_server_that_stops_behind_the_prefix_makes_the_result_partial(tmp_path):
    class Dying(Echo):
        def __call__(self, http):
            self.fault = 503 if len(self.prompts) > 100 else None
            return super().__call__(http)

    result = run_audit(request(tmp_path, text_target(Dying()), "all"), Notes())
    (reason,) = result.incomplete
    assert "behind a prefix: partial result: the server scored" in reason
    assert "of 70 texts" in reason
