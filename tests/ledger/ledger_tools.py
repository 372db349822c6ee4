"""A deployment for tests: known secret, noise that a replay can draw again, and SQL behind the ledger's back."""

import re
from pathlib import Path

import numpy as np
from sqlalchemy import text

from reticent.ledger.database import Database
from reticent.ledger.reader import LedgerReader
from reticent.ledger.store import Ledger
from reticent.pac.charging import Charging
from reticent.pac.curator import Ballot, Curator, CuratorState
from reticent.randomness import SystemNoise

WORLDS = 8
BUDGET = 2.0**-8

# A program that holds a deployment until its input ends; arguments: run folder, key folder, database URL or "-", paths.
HOLDER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[4:]
from ledger_tools import open_ledger
from reticent.ledger.keys import Keyring
with open_ledger(Path(sys.argv[1]), Keyring(Path(sys.argv[2]), {}), sys.argv[3] if sys.argv[3] != "-" else None):
    print("held", flush=True)
    sys.stdin.read()
"""


class ReplayableNoise(SystemNoise):
    """Normals that depend on how many were drawn before, counted over the deployment's life. Tests only."""

    def __init__(self, secret=3):
        self.secret = secret
        self.position = 0

    def secret_index(self, num_worlds):
        return self.secret

    def standard_normal(self, count):
        self.position += 1
        return np.random.default_rng([11, self.position]).normal(size=count)


def ballot(position, key_id=None, budget=BUDGET):
    """The votes for the deployment's token number `position`; the worlds always differ, so noise is always drawn."""
    votes = np.arange(WORLDS) % (2 + position % 3)
    return Ballot(votes, Charging(budget), f"request-{position // 4}", position % 4, bytes(16), key_id)


def open_ledger(run_dir, keyring, url=None, run_id="run", num_worlds=WORLDS, noise=None, **options):
    noise = noise or ReplayableNoise()
    return Ledger.open(run_dir, run_id, num_worlds, keyring, database_url=url, noise=noise, **options)


def read_ledger(run_dir, keyring, url=None, run_id="run"):
    return LedgerReader(run_dir, run_id, keyring, Database.of_run(run_dir, url))


def release(ledger, count=1, batch=1):
    """Release tokens in batches, continuing the deployment's sequence of ballots."""
    tokens = []
    while len(tokens) < count:
        start = ledger.curator.state.tokens_released
        tokens += ledger.curator.release_many([ballot(start + i) for i in range(batch)])
    return tokens


class NoStore:
    def commit(self, state, records):
        pass


def replayed(count):
    """Tokens and state of a deployment that was never kept anywhere."""
    noise = ReplayableNoise()
    curator = Curator.for_experiments(CuratorState.initial(WORLDS, noise), NoStore(), noise)
    tokens = [curator.release_many([ballot(position)])[0].token for position in range(count)]
    return tokens, curator.state


def assert_same(left, right):
    assert left.log_posterior.dtype == np.float64
    assert left.log_posterior.tobytes() == right.log_posterior.tobytes()
    for name in ("secret", "spent_units", "cap_units", "tokens_released", "dissenting_steps"):
        assert getattr(left, name) == getattr(right, name)
        assert type(getattr(left, name)) is type(getattr(right, name))


def sql(run_dir, url, *statements):
    """Change a ledger's tables as an intruder or a restore would; returns the rows of the last statement, if any."""
    engine = Database.of_run(run_dir, url).engine(write=True)
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(text(statement))
        rows = result.all() if result.returns_rows else None
    engine.dispose()
    return rows


TABLES = ("deployment", "state", "releases")


def copied(run_dir, url):
    """Keep a copy of every table."""
    return {table: sql(run_dir, url, f"SELECT * FROM {table}") for table in TABLES}


def put_back(run_dir, url, tables):
    """Replace the content of every table by a copy."""
    engine = Database.of_run(run_dir, url).engine(write=True)
    with engine.begin() as connection:
        for table, rows in tables.items():
            connection.execute(text(f"DELETE FROM {table}"))
            for row in rows:
                values = row._asdict()
                names = ", ".join(values)
                marks = re.sub(r"(\w+)", r":\1", names)
                connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)
    engine.dispose()


def only(folder, pattern):
    [path] = Path(folder).glob(pattern)
    return path
