import json
import math

import pytest

from reticent.cli.main import main
from reticent.cli.output import format_nats, percent_at_most
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED

KEYS = ["step_budget", "tokens", "total_nats", "half_success", "world_success", "worlds", "charging"]


def plan_as_json(capsys, *arguments):
    assert main(["plan", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def binary_kl(s, prior):
    return s * math.log(s / prior) + (1 - s) * math.log((1 - s) / (1 - prior))


def test_the_published_row(capsys):
    result = plan_as_json(capsys, "--tokens", "1000000", "--step-budget", "2^-32")
    assert list(result) == KEYS
    assert result["total_nats"] == 1e6 * 2.0**-32
    assert result["half_success"] == pytest.approx(0.510789, abs=5e-7)
    assert result["world_success"] == pytest.approx(0.0098, abs=5e-5)
    assert result["worlds"] == 128


@pytest.mark.parametrize("budget", ["2^-32", "2.3283064365386963e-10", "0.00000000023283064365386963"])
def test_every_spelling_of_a_budget_is_the_same(capsys, budget):
    assert plan_as_json(capsys, "--tokens", "10", "--step-budget", budget)["step_budget"] == 2.0**-32


def test_a_target_fixes_the_budget_or_the_tokens(capsys):
    per_token = plan_as_json(capsys, "--tokens", "1000000", "--half-success", "0.51")["step_budget"]
    assert per_token * 1e6 == pytest.approx(binary_kl(0.51, 0.5), rel=1e-9)
    assert per_token * 1e6 <= binary_kl(0.51, 0.5)

    tokens = plan_as_json(capsys, "--step-budget", "1e-9", "--half-success", "0.51")["tokens"]
    assert tokens == math.floor(binary_kl(0.51, 0.5) / 1e-9)


def test_the_number_of_worlds_moves_the_world_bound_only(capsys):
    few, many = (
        plan_as_json(capsys, "--tokens", "1000", "--step-budget", "1e-6", "--worlds", worlds) for worlds in ("2", "128")
    )
    assert few["half_success"] == many["half_success"] == few["world_success"]
    assert many["world_success"] < few["world_success"]


def test_people_read_nats_and_bounds_that_are_rounded_up(capsys):
    assert main(["plan", "--tokens", "1000000", "--step-budget", "2^-32"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "1,000,000",
        "2^-32",
        "nats",
        "at most 51.08 %",
        "at most 0.98 %",
        "128 worlds",
        HALF_QUESTION,
        NOT_BOUNDED,
    ):
        assert part in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--tokens", "10"],
        ["--tokens", "10", "--step-budget", "2^-32", "--half-success", "0.6"],
        ["--tokens", "0", "--step-budget", "2^-32"],
        ["--tokens", "10", "--step-budget", "0"],
        ["--tokens", "10", "--step-budget", "-1e-9"],
        ["--tokens", "10", "--step-budget", "nan"],
        ["--tokens", "10", "--step-budget", "inf"],
        ["--tokens", "10", "--step-budget", "2^"],
        ["--tokens", "10", "--step-budget", "2**-32"],
        ["--tokens", "10", "--half-success", "0.5"],
        ["--tokens", "10", "--half-success", "1"],
        ["--tokens", "10", "--half-success", "nan"],
        ["--tokens", "10", "--step-budget", "1e-9", "--worlds", "7"],
        ["--tokens", "10", "--step-budget", "1e-9", "--worlds", "0"],
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, arguments):
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_bad_budget_is_repeated_with_the_forms_that_are_read(capsys):
    main(["plan", "--tokens", "10", "--step-budget", "2**-32"])
    message = capsys.readouterr().err
    assert "--step-budget" in message
    assert "'2**-32'" in message
    assert "2^-32" in message


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.5, "50.00 %"), (0.50001, "50.01 %"), (0.510789, "51.08 %"), (1.0, "100.00 %"), (0.99999999, "100.00 %")],
)
def test_a_bound_is_never_rounded_down(probability, text):
    assert percent_at_most(probability) == text


@pytest.mark.parametrize(("nats", "text"), [(2.0**-32, "2^-32"), (1.0, "2^0"), (0.25, "2^-2"), (3.0, "3 nats")])
def test_a_power_of_two_is_shown_as_one(nats, text):
    assert text in format_nats(nats)
    assert ("^" in format_nats(nats)) == ("^" in text)


def test_a_plan_of_the_rule_dissent_is_a_worst_case_and_says_so(capsys):
    ask = ("--tokens", "1000000", "--step-budget", "2^-32")
    fixed, dissent = (plan_as_json(capsys, *ask, "--charging", rule) for rule in ("fixed", "dissent"))
    assert dissent == fixed | {"charging": "dissent"}
    assert main(["plan", *ask, "--charging", "dissent"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "at least 1,000,000" in text
    assert "at most 2.32831e-10 nats (2^-32)" in text
    assert "only tokens on which the worlds' votes differ" in text


CORPUS = ("--guarantee", "corpus", "--worlds", "512")
CORPUS_KEYS = [
    "guarantee", "tokens", "rho", "epsilon", "delta", "membership_success", "relation", "clip", "gain", "temperature",
    "w", "candidates", "worlds", "rho_per_token", "in_blocks",
]  # fmt: skip


def test_a_corpus_plan_by_each_bound(capsys):
    by_success = plan_as_json(capsys, *CORPUS, "--membership-success", "0.6", "--gain", "2")
    assert list(by_success) == CORPUS_KEYS
    # rho = .2 ln 1.5 and 524,288 rho/w² tokens, w being 1.
    assert by_success["tokens"] == pytest.approx(524_288 * 0.2 * math.log(1.5), abs=2)
    assert by_success["membership_success"] <= 0.6
    assert by_success["w"] == 1.0
    assert by_success["in_blocks"]["membership_success"] < by_success["membership_success"]
    by_rho = plan_as_json(capsys, *CORPUS, "--total-rho", repr(by_success["rho"]), "--gain", "2")
    assert by_rho["tokens"] == pytest.approx(by_success["tokens"], abs=1)
    by_epsilon = plan_as_json(capsys, *CORPUS, "--total-epsilon", "8", "--delta", "1e-6", "--tokens", "500000")
    assert 7.99 < by_epsilon["epsilon"] <= 8
    assert by_epsilon["gain"] == pytest.approx(2 * math.sqrt(551_738 / 500_000), rel=1e-4)


def test_worlds_of_several_places_cost_four_times_as_much(capsys):
    ask = (*CORPUS, "--total-rho", "1", "--gain", "2", "--delta", "1e-7")
    one, two = (plan_as_json(capsys, *ask, "--places", places) for places in ("1", "2"))
    assert (one["relation"], two["relation"]) == ("add-remove", "replacement")
    assert one["tokens"] == pytest.approx(4 * two["tokens"], rel=1e-3)


def test_people_read_the_relation_and_every_reading_rounded_up(capsys):
    assert main(["plan", *CORPUS, "--total-epsilon", "8", "--gain", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "Is a unit in the corpus? right at most 83.08 %",
        "epsilon at delta 1e-06 8.0000",
        "one unit more or less (add-remove)",
        "in blocks of 64",
        "other releases over the same records",
        "at most 1 nats",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CORPUS], "exactly two"),
        ([*CORPUS, "--tokens", "10", "--half-success", "0.6"], "half_success is for the guarantee realised-world"),
        ([*CORPUS, "--tokens", "10", "--total-rho", "1", "--charging", "fixed"], "charging is for"),
        (["--tokens", "10", "--total-rho", "1"], "total_rho is for the guarantee corpus"),
        (["--guarantee", "corpus", "--tokens", "10", "--total-rho", "1"], "number of worlds"),
        ([*CORPUS, "--tokens", "10", "--total-rho", "1", "--total-epsilon", "1"], "one bound"),
        ([*CORPUS, "--tokens", "10", "--total-epsilon", "0"], "total epsilon"),
        ([*CORPUS, "--tokens", "10", "--total-epsilon", "1", "--delta", "0.01"], "1/512"),
        ([*CORPUS, "--tokens", "10", "--gain", "1", "--temperature", "0"], "temperature"),
        ([*CORPUS, "--tokens", "10", "--gain", "1", "--clip", "nan"], "clip"),
        ([*CORPUS, "--tokens", "10", "--gain", "1", "--places", "0"], "places"),
    ],
)
def test_bad_input_for_a_corpus_is_one_line_and_code_2(capsys, arguments, message):
    assert main(["plan", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
