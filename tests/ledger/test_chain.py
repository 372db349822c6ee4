"""The chain by itself, against digests computed field by field."""

import hashlib
from dataclasses import astuple, dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import DeploymentStateError
from reticent.ledger import chain
from reticent.ledger.chain import Totals

DEPLOYMENT, RUN = "ab" * 16, bytes(range(32))


@dataclass(frozen=True)
class Row:
    number: int
    time: int
    request: str
    step: int
    coin_key: bytes | None
    num_active: int
    charge_units: str
    key_id: str | None
    digest: bytes = b""


def oracle(previous, row):
    """The documented encoding, written out."""
    coins, request = row.coin_key or b"", row.request.encode()
    key = (row.key_id or "").encode()
    content = previous
    for number, size in ((row.number, 8), (row.time, 8), (row.step, 8), (row.num_active, 4)):
        content += number.to_bytes(size, "big")
    content += bytes.fromhex(row.charge_units)
    lengths = (-1 if row.coin_key is None else len(coins), len(request), -1 if row.key_id is None else len(key))
    for length in lengths:
        content += length.to_bytes(4, "big", signed=True)
    return hashlib.sha256(content + coins + request + key).digest()


rows = st.builds(
    Row,
    number=st.just(1),
    time=st.integers(0, 2**40),
    request=st.text(max_size=12),
    step=st.integers(0, 2**40),
    coin_key=st.none() | st.binary(min_size=16, max_size=16),
    num_active=st.integers(1, 1000),
    charge_units=st.integers(0, 2**128 - 1).map("{:032x}".format),
    key_id=st.none() | st.text(max_size=6),
)


def replay(linked, start):
    return chain.replay([astuple(row) for row in linked], start)


def chained(plain):
    head, linked = chain.first_digest(DEPLOYMENT, RUN), []
    for number, row in enumerate(plain, 1):
        row = replace(row, number=number)
        head = oracle(head, row)
        linked.append(replace(row, digest=head))
    return linked, Totals(len(linked), sum(int(row.charge_units, 16) for row in linked), head)


@settings(max_examples=50)
@given(st.lists(rows, max_size=6))
def test_a_chain_replays_to_its_length_its_exact_sum_and_its_last_digest(plain):
    linked, totals = chained(plain)
    assert replay(linked, chain.first_digest(DEPLOYMENT, RUN)) == totals
    chain.require_sealed(totals, totals)


def test_the_start_of_a_chain_names_deployment_and_run():
    expected = hashlib.sha256(b"reticent release chain v1" + bytes.fromhex(DEPLOYMENT) + RUN).digest()
    assert chain.first_digest(DEPLOYMENT, RUN) == expected
    assert chain.first_digest("cd" * 16, RUN) != expected != chain.first_digest(DEPLOYMENT, bytes(32))


EXAMPLE = Row(1, 1_700_000_000, "request", 2, bytes(16), 3, f"{2**32:032x}", "k1")


@pytest.mark.parametrize(
    "change",
    [
        {"time": 1_700_000_001},
        {"request": "requesu"},
        {"request": "requestk", "key_id": "1"},
        {"step": 3},
        {"coin_key": None},
        {"coin_key": bytes(15) + b"\1"},
        {"num_active": 4},
        {"charge_units": f"{2**32 - 1:032x}"},
        {"charge_units": "-1"},
        {"charge_units": "many"},
        {"charge_units": None},
        {"step": -1},
        {"time": "yesterday"},
        {"request": None},
        {"key_id": None},
        {"key_id": ""},
        {"key_id": "k2"},
        {"digest": bytes(32)},
        {"digest": None},
    ],
)
def test_any_edit_of_any_column_is_found_where_it_was_made(change):
    linked, _ = chained([EXAMPLE] * 5)
    linked[2] = replace(linked[2], **change)
    with pytest.raises(DeploymentStateError, match="release 3 does not fit its digest: the row was edited"):
        replay(linked, chain.first_digest(DEPLOYMENT, RUN))


@pytest.mark.parametrize(
    ("drop", "message"),
    [({0}, "release 1 missing"), ({2}, "release 3 missing"), ({1, 2}, "releases 2 to 3 missing")],
)
def test_a_gap_is_named(drop, message):
    linked, _ = chained([EXAMPLE] * 5)
    kept = [row for index, row in enumerate(linked) if index not in drop]
    with pytest.raises(DeploymentStateError, match=message):
        replay(kept, chain.first_digest(DEPLOYMENT, RUN))


def test_a_chain_made_anew_is_told_from_the_sealed_one():
    _, sealed = chained([EXAMPLE] * 5)
    shorter, longer = chained([EXAMPLE] * 4)[1], chained([EXAMPLE] * 6)[1]
    with pytest.raises(DeploymentStateError, match="ends with release 4, but 5 were made: rows were cut off its end"):
        chain.require_sealed(shorter, sealed)
    with pytest.raises(DeploymentStateError, match="6 releases, but only 5 were made: rows were added"):
        chain.require_sealed(longer, sealed)
    cheaper = chained([EXAMPLE] * 4 + [replace(EXAMPLE, charge_units=f"{1:032x}")])[1]
    with pytest.raises(DeploymentStateError, match="digests made anew"):
        chain.require_sealed(cheaper, sealed)
    with pytest.raises(DeploymentStateError, match="add up to"):
        chain.require_sealed(sealed, replace(sealed, units=sealed.units - 1))
