"""Exposure by choice: who is chosen, what a knockout asks and gives, and what it gives where nothing is known."""

import json
import math

import httpx
import numpy as np
import pytest
from fake_targets import Notes
from test_audit_run import MEMBERS, request
from text_server import TextServer, text_target

from reticent.auditing.canaries.choice import (
    chosen_option,
    exposure_by_choice,
    num_rounds,
    question,
)
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.auditing.run import run_audit

CANARIES = draw_canaries(CanaryKind.DIGITS, 8, (1,), seed=3)


def listed(prompt):
    return prompt.partition("right: ")[2].partition(".\n")[0].split("; ")


class Model:
    """Goes on with the secrets that it knows; among others it takes the one that `prefers` puts first."""

    def __init__(self, known=(), prefers=lambda options: options[0]):
        self.known, self.prefers = {canary.prefix: canary.secret for canary in known}, prefers
        self.prompts, self.lengths = [], []

    def write(self, prompts, lengths):
        self.prompts += prompts
        self.lengths += lengths
        return [self.answer(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]

    def answer(self, prompt, length):
        options, sentence = listed(prompt), prompt.splitlines()[-1]
        secret = self.known.get(sentence)
        return (" " + (secret if secret in options else self.prefers(options)))[:length]


def exposure_of(canary, model, num_candidates, options):
    return exposure_by_choice(canary, model.write, num_candidates, np.random.default_rng(0), options)


def test_the_choice_is_the_one_option_whose_beginning_is_written_longest():
    assert chosen_option(" 124", ["123", "129", "888"]) is None, "two have the same two digits"
    assert chosen_option(" 1234", ["123", "129", "888"]) == "123"
    assert chosen_option("\n8", ["123", "129", "888"]) == "888"
    assert chosen_option("The 8", ["123", "129", "888"]) is None
    assert chosen_option("", ["123", "129"]) is None


def test_rounds_are_as_many_as_the_candidates_fill():
    assert [num_rounds(others, 8) for others in (6, 7, 62, 63, 1000)] == [0, 1, 1, 2, 3]


def test_a_secret_that_is_known_wins_every_round_and_one_that_is_not_costs_a_question():
    canary = CANARIES[0]
    knowing = Model([canary])
    found = exposure_of(canary, knowing, 7, options=2)
    assert (found.rank, found.num_candidates, found.exposure_bits) == (1, 8, 3.0)
    assert len(knowing.prompts) == 7, "(2^3 - 1) / (2 - 1) questions"
    assert len({secret for prompt in knowing.prompts for secret in listed(prompt)}) == 8
    unwilling = Model(prefers=lambda options: "none of them")
    lost = exposure_of(canary, unwilling, 7, options=2)
    assert (lost.rank, lost.num_candidates, lost.exposure_bits) == (8, 8, 0.0)
    assert len(unwilling.prompts) == 1


def test_a_rivals_block_is_played_out_before_it_is_met():
    canary = CANARIES[0]
    model = Model([canary], prefers=max)
    exposure_of(canary, model, 15, options=4)
    own, *blocks, final = map(listed, model.prompts)
    assert canary.secret in own
    assert [canary.secret in block for block in blocks] == [False] * 3
    assert set(final) == {canary.secret, *map(max, blocks)}


def test_where_no_rival_is_chosen_the_secret_goes_on_alone():
    canary = CANARIES[0]
    model = Model([canary], prefers=lambda options: "none")
    assert exposure_of(canary, model, 7, options=2).exposure_bits == 3.0
    assert len(model.prompts) == 1 + 1 + 2, "its own group; one rival's group; two groups, whose final nobody reaches"


def test_an_answer_that_does_not_come_leaves_no_exposure():
    assert (
        exposure_by_choice(CANARIES[0], lambda prompts, _: [None] * len(prompts), 7, np.random.default_rng(0)) is None
    )
    assert exposure_by_choice(CANARIES[0], Model().write, 6, np.random.default_rng(0)) is None


def test_answers_are_no_longer_than_it_takes_to_tell_the_options_apart():
    model = Model([CANARIES[0]])
    exposure_of(CANARIES[0], model, 63, options=8)
    for prompt, length in zip(model.prompts, model.lengths, strict=True):
        options = listed(prompt)
        assert len({option[: length - 1] for option in options}) == len(options)
        assert len({option[: length - 2] for option in options}) < len(options) or length == 2


@pytest.mark.parametrize("prefers", [max, lambda options: options[0], lambda options: options[-1]])
def test_what_the_model_never_saw_reaches_b_bits_with_a_chance_of_two_to_the_minus_b(prefers):
    canaries = draw_canaries(CanaryKind.DIGITS, 400, (1,), seed=1)
    model = Model(prefers=prefers)
    bits = np.array(
        [
            exposure_by_choice(canary, model.write, 7, np.random.default_rng(number), 2).exposure_bits
            for number, canary in enumerate(canaries)
        ]
    )
    for reached in (1, 2, 3):
        expected = 2.0**-reached
        deviation = math.sqrt(expected * (1 - expected) / len(bits))
        assert abs((bits >= reached).mean() - expected) < 4 * deviation


def test_a_prompt_ends_with_the_canarys_own_sentence():
    assert question("The code is", ["12", "34"]) == "One of these is right: 12; 34.\nThe code is"


class Remembering(TextServer):
    """Knows texts by their last line, whatever stands before it."""

    def continuation(self, prompt, max_tokens):
        return super().continuation(prompt.splitlines()[-1], max_tokens)


def test_canaries_on_a_server_of_text_alone_are_exposed_by_choice_and_bound_epsilon(tmp_path):
    planted = [canary.text for canary in CANARIES if canary.member]
    server = Remembering([*MEMBERS, *planted])
    result = run_audit(request(tmp_path, text_target(server), "all", canaries=CANARIES), Notes())
    held_out, once = result.canaries
    assert held_out.exposure_by == once.exposure_by == "choice"
    assert {place.exposure_bits for place in once.exposures} == {9.0}
    assert {place.exposure_bits for place in held_out.exposures} == {0.0}
    # Half of the pairs are guessed to have planted their first twin: the coins that agree are right.
    firsts = sum(canary.member for canary in CANARIES if canary.id.endswith("a"))
    assert (result.one_run.num_correct, result.one_run.num_guesses) == (8 - abs(firsts - 4), 8)
    assert result.incomplete == ()
    poor = Remembering([*MEMBERS, *planted], budget=80 + 16 + 16 + 30)
    partial = run_audit(request(tmp_path / "poor", text_target(poor), "all", canaries=CANARIES), Notes())
    assert any("canaries were not chosen among others" in reason for reason in partial.incomplete)


def test_a_server_that_refuses_long_prompts_is_asked_about_fewer_secrets_at_once(tmp_path):
    class Short(Remembering):
        def __call__(self, http):
            if len(json.loads(http.content)["prompt"]) > 100:
                return httpx.Response(400)
            return super().__call__(http)

    server = Short([*MEMBERS, *(canary.text for canary in CANARIES if canary.member)])
    result = run_audit(request(tmp_path, text_target(server), "all", canaries=CANARIES), Notes())
    (held_out, once) = result.canaries
    assert {(place.num_candidates, place.exposure_bits) for place in once.exposures} == {(512, 9.0)}
    assert {place.exposure_bits for place in held_out.exposures} == {0.0}
    assert {len(listed(body["prompt"])) for body in server.bodies if "right: " in body["prompt"]} == {2}
    assert result.incomplete == ()
