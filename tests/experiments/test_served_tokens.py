"""Tokens within one bound under both charging rules, against deployments that are played out token by token."""

import json

import numpy as np
import pytest
from pac_oracles import MemoryStore

from experiments.pac.common import HERE
from experiments.pac.served_tokens import Stream, main, served, streams_of_results
from reticent.decoding.votes import Decoder
from reticent.pac.accounting import cap_units
from reticent.pac.bounds import attack_success, nats_for_success
from reticent.pac.charging import Charging, ChargingRule
from reticent.pac.curator import Ballot, Curator, CuratorState
from reticent.randomness import SeededNoise
from reticent.stats.means import Mean, TextSpans


def test_the_factor_is_that_of_deployments_played_out_to_their_cap():
    """Texts of 50 tokens whose share of dissent varies; the curator releases them in turn until it refuses one."""
    generator = np.random.default_rng(5)
    rates = generator.uniform(0.2, 0.5, 200)
    dissent_N = generator.random((200, 50)) < rates[:, None]
    spans = TextSpans(np.arange(0, 10_001, 50))
    row = served(Stream("made", Decoder.GUMBEL, spans.mean(dissent_N.ravel())), 0.6)
    budget, affordable = 2.0**-20, 1_500
    votes = {False: np.zeros(4, np.int64), True: np.array([0, 1, 0, 1])}
    counts = {}
    for rule in ChargingRule:
        initial = CuratorState.initial(4, SeededNoise(0), affordable * budget, rule)
        curator = Curator.for_experiments(initial, MemoryStore(), SeededNoise(1))
        charging = Charging(budget, rule)
        for text in generator.permutation(200):
            ballots = [
                Ballot(votes[bool(differs)], charging, "r", step) for step, differs in enumerate(dissent_N[text])
            ]
            if None in curator.release_many(ballots):
                break
        # Under `dissent` the rest of the last text counts where worlds agree: fewer than 50 tokens of some 4,000.
        counts[rule] = curator.state.tokens_released
        assert curator.account.left_units == 0
    assert counts[ChargingRule.DISSENT] / counts[ChargingRule.FIXED] == pytest.approx(row.times.value, rel=0.05)
    assert row.times.low < 1 / rates.mean() < row.times.high


def test_fixed_serves_what_the_cap_of_the_bound_covers():
    row = served(Stream("made", Decoder.GREEDY, Mean(value=0.25, standard_error=0.01, num_samples=50)), 0.51)
    cap = cap_units(nats_for_success(0.51, 0.5))
    assert row.fixed == cap // 2**32
    assert attack_success(row.fixed * 2.0**-32, 0.5) <= 0.51 < attack_success((row.fixed + 1) * 2.0**-32 * 1.001, 0.5)
    assert (row.times.value, row.dissent.value) == (4.0, 4.0 * row.fixed)
    low, high = Mean(value=0.25, standard_error=0.01, num_samples=50).interval()
    assert (row.times.low, row.times.high) == (1 / high, 1 / low)


def test_the_committed_result_is_that_of_the_committed_streams():
    committed = json.loads((HERE / "served-tokens-all.json").read_text("utf-8"))["results"]["served"]
    streams = list(streams_of_results(HERE))
    assert len(committed) == 2 * len(streams) >= 8
    for row in committed:
        [stream] = [
            stream
            for stream in streams
            if (stream.label, stream.decoder) == (row["stream"]["label"], row["stream"]["decoder"])
        ]
        assert row["times"]["value"] == pytest.approx(1 / stream.dissent.value, rel=1e-12)


def test_without_results_it_says_what_to_run(tmp_path, capsys):
    assert main(["--results", str(tmp_path)]) == 2
    assert "no results of stability; run that first, or give --votes" in capsys.readouterr().err
    (tmp_path / "votes.npz").write_bytes(b"nothing")
    assert main(["--results", str(tmp_path), "--votes", str(tmp_path / "votes.npz")]) == 2
    assert "holds no votes" in capsys.readouterr().err
