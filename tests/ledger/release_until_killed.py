"""Releases tokens for ever and prints each one; the crash test kills it. Arguments: run directory, key folder."""

import os
import sys
from pathlib import Path

import numpy as np

from reticent.ledger.sealed_file import SealedStateStore
from reticent.ledger.secret import Keyring
from reticent.pac.curator import Curator
from reticent.randomness import SystemNoise

store, state = SealedStateStore.open(Path(sys.argv[1]), "run", Keyring(Path(sys.argv[2]), {}))
curator = Curator(state, store, SystemNoise())
votes = np.arange(state.log_posterior.size) % 2
for step in range(10**9):
    curator.release(votes, 2.0**-8, request="crash", step=step)
    os.write(1, b".")
