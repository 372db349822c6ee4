"""A process that is killed at any moment loses no charge, and its deployment goes on as if it had never stopped."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from ledger_tools import BUDGET, WORLDS, assert_same, open_ledger, read_ledger, release, replayed

from reticent.pac.accounting import charge_units

ROUNDS = 16


def test_every_token_that_was_shown_is_charged_and_the_posterior_is_that_of_a_replay(run_dir, keyring, url):
    open_ledger(run_dir, keyring, url).close()
    script = Path(__file__).with_name("release_until_killed.py")
    arguments = [sys.executable, script, run_dir, keyring.folder, url or "-", str(ROUNDS), "8"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with read_ledger(run_dir, keyring, url) as reader:
        totals, state = reader.verify(), reader.state

    shown, opened = {}, []
    for line in done.stdout.splitlines():
        word, number = line.split()
        if word == "opened":
            # What was shown before is charged, and at most one batch was charged without being shown.
            assert int(number) >= max(shown, default=-1) + 1
            assert int(number) <= max(max(shown, default=-1) + 1, opened[-1] if opened else 0) + 3
            opened.append(int(number))
        else:
            # No position is ever shown twice: nothing was drawn again that had been shown.
            assert int(word) not in shown
            shown[int(word)] = int(number)

    tokens, expected = replayed(state.tokens_released)
    assert_same(state, expected)
    assert (totals.releases, totals.units) == (state.tokens_released, state.tokens_released * charge_units(BUDGET))
    assert len(opened) >= ROUNDS * 3 // 4
    assert len(shown) >= len(opened)
    assert max(shown) < state.tokens_released
    assert all(tokens[position] == token for position, token in shown.items())

    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        assert ledger.curator.state.log_posterior.size == WORLDS
        assert np.isfinite(ledger.curator.state.log_posterior).all()
