"""A corpus deployment for tests: small constants, and ballots whose votes differ from token to token."""

import numpy as np

from reticent.dp.curator import CorpusBallot
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings
from reticent.ledger.corpus_store import CorpusLedger
from reticent.randomness import SystemNoise

SETTINGS = CorpusSettings(0.1, 2.0, 1.3, 3, 16, Relation.ADD_REMOVE)
CHARGE = SETTINGS.charge_units


def corpus_ballot(position, key_id=None):
    """The votes for the deployment's token number `position`."""
    votes = np.array([position % 5, -position, 3]) * 1000
    aggregate = Aggregate(np.array([4, 8, 9]), np.log([0.6, 0.3, 0.1]), votes)
    return CorpusBallot(aggregate, f"request-{position // 4}", position % 4, key_id)


def open_corpus_ledger(run_dir, keyring, url=None, settings=SETTINGS, run_id="run", bits=None, **options):
    return CorpusLedger.open(
        run_dir, run_id, settings, keyring, database_url=url, bits=bits or SystemNoise(), **options
    )


def release_corpus(ledger, count=1, batch=1, key_id=None):
    """Release tokens in batches, continuing the deployment's sequence of ballots."""
    tokens = []
    while len(tokens) < count:
        start = ledger.curator.state.tokens_released
        tokens += ledger.curator.release_many([corpus_ballot(start + i, key_id) for i in range(batch)])
    return tokens
