"""Queues and quotas: whose turn it is, and what a key may still have."""

import math
from types import SimpleNamespace

import pytest

from reticent.ledger.api_keys import ApiKey
from reticent.ledger.usage import Spending
from reticent.server.fair_queue import FairQueue
from reticent.server.metering import KeyMeter, Meters


def job(key_id, name=None):
    return SimpleNamespace(key_id=key_id, name=name)


def test_the_key_with_the_fewest_answers_is_served_then_the_one_that_waited_longest():
    queue = FairQueue()
    for position in range(4):
        queue.push(job("a", position))
    for key in ("b", "c"):
        queue.push(job(key, 0))
    order, active = [], {}
    while len(queue):
        taken = queue.pop(queue.next_key(active))
        order.append(f"{taken.key_id}{taken.name}")
        active[taken.key_id] = active.get(taken.key_id, 0) + 1
    assert order == ["a0", "b0", "c0", "a1", "a2", "a3"]


def test_equal_keys_take_turns_and_a_late_key_is_not_starved():
    queue = FairQueue()
    for position in range(50):
        queue.push(job("a", position))
    assert queue.pop(queue.next_key({})).key_id == "a"
    for position in range(3):
        queue.push(job("b", position))
    assert [queue.pop(queue.next_key({})).key_id for _ in range(6)] == ["b", "a", "b", "a", "b", "a"]
    assert queue.pop(queue.next_key({"a": 9})).key_id == "a"


def test_removed_and_drained_jobs_are_gone():
    queue = FairQueue()
    one, two = job("a"), job("b")
    queue.push(one)
    queue.push(two)
    assert queue.remove(one)
    assert not queue.remove(one)
    assert (len(queue), queue.drain(), len(queue)) == (1, [two], 0)
    with pytest.raises(IndexError):
        queue.pop(queue.next_key({}))


def test_total_is_exact_and_put_back_tokens_count_again():
    meter = KeyMeter(Spending(tokens=7, units=70))
    meter.set_quotas(total=9, per_minute=None)
    assert [meter.take() for _ in range(3)] == [True, True, False]
    meter.put_back()
    assert meter.take()
    assert (meter.used, meter.is_exhausted, meter.tokens_left) == (9, True, 0)
    # Spending is what was charged for tokens that were released: each its own.
    assert meter.spending == Spending(tokens=7, units=70)
    meter.charge(3)
    meter.charge(0)
    assert meter.spending == Spending(tokens=9, units=73)
    meter.set_quotas(total=None, per_minute=None)
    assert meter.take()


def test_rate_is_a_bucket_of_one_minute():
    now = [100.0]
    meter = KeyMeter(Spending(), clock=lambda: now[0])
    meter.set_quotas(total=None, per_minute=60)
    assert meter.reserve(50) == 0
    assert meter.reserve(20) == pytest.approx(10)
    now[0] += 10
    assert meter.reserve(20) == 0
    assert meter.reserve(61) == math.inf
    meter.give_back(30)
    assert meter.reserve(30) == 0
    now[0] += 3600
    assert meter.reserve(60) == 0
    assert meter.reserve(1) == pytest.approx(1)


def test_meters_start_from_the_ledger_and_follow_changed_quotas():
    meters = Meters({"k": Spending(5, 50), "gone": Spending(2, 20)})
    key = ApiKey("k", "n", frozenset(), None, 6, 0, None)
    meter = meters.of(key)
    assert meter.take()
    assert not meter.take()
    assert meters.of(key) is meter
    assert meters.of(None).take()
    assert meters.used() == {"k": 6, "gone": 2}
