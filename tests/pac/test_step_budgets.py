"""One rule for step budgets: what one place accepts, all accept, and what one refuses, all refuse."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InvalidValueError
from reticent.pac.bounds import plan
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import SeededNoise


class NoStore:
    def commit(self, state, records):
        pass


def release(budget):
    noise = SeededNoise(0)
    curator = Curator.for_experiments(CuratorState.initial(4, noise), NoStore(), noise)
    curator.release(np.array([1, 2, 2, 2]), Charging(budget), request="r", step=0)


PLACES = {
    "plan": lambda budget: plan(tokens=1, step_budget=budget),
    "settings": lambda budget: DecodingSettings(Decoder.GREEDY, budget),
    "curator": release,
    **{f"mechanism {kind}": lambda budget, kind=kind: mechanism_for(kind, budget) for kind in ReleaseMechanism},
    "charging": Charging,
}


def accepts(place, budget):
    try:
        PLACES[place](budget)
    except InvalidValueError:
        return False
    return True


@given(st.floats())
@example(5e-324)
@example(2.0**20)
@example(2.0**-128)
@example(math.nextafter(2.0**-128, 0.0))
@example(2.0**10)
@example(math.nextafter(2.0**10, math.inf))
@example(math.nan)
def test_every_place_accepts_the_same_step_budgets(budget):
    expected = 2.0**-128 <= budget <= 2.0**10
    assert {place: accepts(place, budget) for place in PLACES} == dict.fromkeys(PLACES, expected)


@pytest.mark.parametrize("budget", ["5e-324", "2^20"])
def test_plan_refuses_on_the_command_line_what_a_deployment_would(budget, capsys):
    from reticent.cli.main import main

    assert main(["plan", "--tokens", "10", "--step-budget", budget]) == 2
    assert "between 2^-128 and 2^10 nats" in " ".join(capsys.readouterr().err.split())
