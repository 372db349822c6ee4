"""The engine thread on an ensemble of arithmetic: caps, fairness, failures, fallback, and time that knows no secret."""

import random
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from pac_oracles import MemoryStore
from scipy import stats
from server.engine_parts import (
    NATS,
    SETTINGS,
    WORLDS,
    ActingAt,
    Arithmetic,
    Recorder,
    Tokens,
    finish,
    make_curator,
    make_job,
)
from tiny_adapters import random_adapters
from tiny_models import build_tiny_model

from reticent.decoding.logit_votes import cast_votes
from reticent.decoding.speculative import DraftLength
from reticent.engine.engine import Engine
from reticent.errors import StorageError
from reticent.layers.forward import batched_decoder
from reticent.pac.accounting import charge_units
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator
from reticent.pac.mechanism import ReleaseMechanism
from reticent.server.jobs import FinishReason, TokenSource
from reticent.server.scheduler import ClosingError, QueueFullError
from reticent.server.stepping import decode_step


def test_answers_are_those_of_the_token_loop_alone(started):
    """Unanimous votes need no noise, so batching must not change a single token."""
    ensemble = Arithmetic()
    ensemble.world_logits = lambda context, ids: np.cos(ids * (context.length % 7 + 1.0))[None].repeat(WORLDS, 0)
    batcher = started(ensemble, max_concurrent=3)
    jobs = [make_job(prompt=[1] * length, max_tokens=12, seed=length) for length in range(1, 8)]
    batcher.submit(jobs)
    finish(jobs)
    for job in jobs:
        alone, expected = Tokens(job.prompt), []
        for step in range(12):
            ids = np.sort(np.argsort(-ensemble.public_logits(alone), kind="stable")[:8])
            scores = np.cos(ids * (alone.length % 7 + 1.0)) + job.coins.gumbel(step, 8)
            expected.append(int(ids[np.argmax(scores)]))
            alone.tokens.append(expected[-1])
        assert job.sink.tokens == expected
        assert job.sink.ending is FinishReason.LENGTH


@pytest.mark.parametrize("kind", list(ReleaseMechanism))
def test_a_step_releases_by_the_mechanism_the_job_is_set_to(kind):
    """Dissenting votes, drawn from one seed: the step's token and posterior are those of the curator asked alone."""
    job = make_job()
    job.settings = replace(SETTINGS, release_mechanism=kind)
    ensemble, stepped, alone = Arithmetic(), make_curator(secret=1), make_curator(secret=1)
    ensemble.world_logits = lambda context, ids: 5 * np.cos(ids * (context.length + 2.0 * np.arange(WORLDS)[:, None]))
    job.context = ensemble.open(job.prompt)
    for _ in range(5):
        [(_, written)] = decode_step(ensemble, stepped, [job], public_fallback=False).tokens
        votes = cast_votes(ensemble, job.context, job.settings, job.coins, job.step)
        released = alone.release(votes, Charging(NATS), request="r", step=job.step, release_mechanism=kind)
        assert (written.token, written.reserve_units) == (released.token, released.reserve_units)
        np.testing.assert_array_equal(stepped.state.log_posterior, alone.state.log_posterior)
        ensemble.extend([job.context], [written.token])
    assert stepped.state.dissenting_steps > 0
    assert job.sink.charged_units == stepped.account.spent_units == 5 * charge_units(NATS)


def test_requests_join_and_leave_a_running_batch(started):
    ensemble = Arithmetic()
    batcher = started(ensemble, max_concurrent=4)
    short = [make_job(max_tokens=3) for _ in range(3)]
    ended_meanwhile = []

    def leave():
        ended_meanwhile.extend(job.sink.ending for job in short)
        batcher.cancel(long)

    long = make_job(max_tokens=2000, sink=ActingAt({20: lambda: batcher.submit(short), 40: leave}))
    batcher.submit([long])
    [sink] = finish([long])
    assert ended_meanwhile == [FinishReason.LENGTH] * 3
    assert (sink.ending, len(sink.tokens)) == (FinishReason.CANCELLED, 40)
    assert max(ensemble.batches) > 1


@pytest.mark.parametrize("num_drafts", [1, 3])
def test_drafts_change_no_answer(started, num_drafts):
    decoder = batched_decoder(build_tiny_model("llama"))
    engine = Engine(decoder, random_adapters(decoder, ["attention"], 3, 2))
    answers = []
    for drafts in (0, num_drafts):
        jobs = [make_job(prompt=[5] * length, max_tokens=8 + length, seed=length) for length in range(1, 5)]
        for job in jobs:
            job.draft_length = DraftLength(drafts)
        batcher = started(engine, make_curator(secret=1), max_concurrent=3)
        batcher.submit(jobs)
        answers.append([sink.tokens for sink in finish(jobs)])
        batcher.close(10)
    assert answers[0] == answers[1]
    assert [len(answer) for answer in answers[0]] == [9, 10, 11, 12]


def test_others_decode_between_the_parts_of_a_long_prompt(started):
    ensemble = Arithmetic()
    batcher = started(ensemble)
    late = make_job(prompt=[1] * 50)
    tokens_at_part = {}
    first = make_job(max_tokens=200, sink=ActingAt({5: lambda: batcher.submit([late])}))
    for part in range(3, 53):  # the first two are of the first prompt
        ensemble.at_part[part] = lambda part=part: tokens_at_part.setdefault(part, len(first.sink.tokens))
    batcher.submit([first])
    assert [sink.ending for sink in finish([first, late])] == [FinishReason.LENGTH] * 2
    assert list(tokens_at_part.values()) == list(range(5, 55))


def test_an_answer_is_cancelled_while_its_prompt_is_read(started):
    ensemble = Arithmetic()
    batcher = started(ensemble, max_concurrent=1)
    job, after = make_job(prompt=[1] * 1000), make_job()
    ensemble.at_part[10] = lambda: batcher.cancel(job)
    batcher.submit([job, after])
    assert [sink.ending for sink in finish([job, after])] == [FinishReason.CANCELLED, FinishReason.LENGTH]
    assert ensemble.parts == 10 + len(after.prompt)


def test_the_deadline_holds_while_a_prompt_is_read(started):
    ensemble = Arithmetic()
    batcher = started(ensemble)
    job = make_job(prompt=[1] * 1000)

    def close():
        threading.Thread(target=batcher.close, args=(0,)).start()
        while batcher.is_running:
            time.sleep(0.001)

    ensemble.at_part[10] = close
    batcher.submit([job])
    assert finish([job])[0].ending is FinishReason.SHUTDOWN
    assert ensemble.parts == 10


def test_a_defect_in_handing_on_ends_its_own_answer_only(started, caplog):
    def fails():
        raise ValueError("cannot decode 'Dear Mrs Smith'")

    class Deaf(Recorder):
        def end(self, ending):
            super().end(ending)
            fails()

    batcher = started()
    jobs = [make_job(sink=ActingAt({2: fails})), make_job(sink=Deaf()), make_job()]
    batcher.submit(jobs)
    assert [sink.ending for sink in finish(jobs)] == [FinishReason.FAULT, FinishReason.LENGTH, FinishReason.LENGTH]
    assert batcher.is_running
    # What failed is said, and not what text it was about.
    assert caplog.text.count("ValueError") == 2
    assert "Smith" not in caplog.text


def test_the_cap_holds_under_concurrency_and_every_shown_token_is_charged(started):
    curator = make_curator(tokens=101)
    batcher = started(curator=curator, max_concurrent=8)
    jobs = [make_job(key=str(number % 5), max_tokens=4) for number in range(64)]
    batcher.submit(jobs)
    sinks = finish(jobs)
    assert sum(len(sink.tokens) for sink in sinks) == 101
    assert curator.account.spent_units == 101 * charge_units(NATS) <= curator.account.cap_units
    assert {sink.ending for sink in sinks} == {FinishReason.LENGTH, FinishReason.BUDGET}


def test_two_keys_share_the_engine_evenly(started):
    ensemble = Arithmetic()
    ensemble.gate.clear()
    batcher = started(ensemble, max_concurrent=4, max_queue=200)
    order = []

    class Noting(Recorder):
        def __init__(self, key):
            super().__init__()
            self.key = key

        def end(self, ending):
            order.append(self.key)
            super().end(ending)

    greedy = [make_job(key="greedy", sink=Noting("greedy")) for _ in range(60)]
    modest = [make_job(key="modest", sink=Noting("modest")) for _ in range(20)]
    batcher.submit(greedy)
    batcher.submit(modest)
    ensemble.gate.set()
    finish(greedy + modest)
    first = Counter(order[:40])
    assert abs(first["greedy"] - first["modest"]) <= 4


def test_a_key_without_tokens_left_ends_alone(started):
    batcher = started()
    poor, rich = make_job(sink=Recorder(total=2)), make_job()
    batcher.submit([poor, rich])
    finish([poor, rich])
    assert (len(poor.sink.tokens), poor.sink.ending) == (2, FinishReason.QUOTA)
    assert (len(rich.sink.tokens), rich.sink.ending) == (5, FinishReason.LENGTH)


def test_the_public_model_goes_on_where_the_budget_ends(started):
    curator = make_curator(tokens=7)
    batcher = started(curator=curator, public_fallback=True)
    jobs = [make_job(max_tokens=6), make_job(max_tokens=6)]
    batcher.submit(jobs)
    sources = Counter(source for sink in finish(jobs) for source in sink.sources)
    assert sources == {TokenSource.PRIVATE: 7, TokenSource.PUBLIC: 5}
    assert curator.state.tokens_released == 7
    later = make_job(max_tokens=4)
    batcher.submit([later])
    [sink] = finish([later])
    context, coins = Tokens(later.prompt), later.coins
    for step, token in enumerate(sink.tokens):
        logits = Arithmetic().public_logits(context)
        ids = np.sort(np.argsort(-logits, kind="stable")[:8])
        assert token == ids[np.argmax(logits[ids] + coins.gumbel(step, 8))]
        context.tokens.append(token)
    assert curator.state.tokens_released == 7


class FailingStore(MemoryStore):
    failing = False

    def commit(self, state, records):
        if self.failing:
            raise StorageError("disk full")
        super().commit(state, records)

    def reconcile(self, state):
        return state


def test_what_cannot_be_written_is_not_shown_and_service_resumes(started):
    store = FailingStore()
    curator = make_curator(store=store)
    batcher = started(curator=curator)
    store.failing = True
    jobs = [make_job(sink=Recorder(total=5)) for _ in range(3)]
    batcher.submit(jobs)
    for sink in finish(jobs):
        assert (sink.tokens, sink.ending, sink.left) == ([], FinishReason.STORAGE, 5)
    assert batcher.commit_failed
    assert curator.state.tokens_released == 0
    store.failing = False
    again = [make_job() for _ in range(3)]
    batcher.submit(again)
    assert {sink.ending for sink in finish(again)} == {FinishReason.LENGTH}
    assert not batcher.commit_failed
    assert curator.state.tokens_released == 15


def test_a_model_that_gives_no_distribution_ends_its_own_answer_only(started):
    ensemble = Arithmetic()
    ensemble.poisoned.add(13)
    batcher = started(ensemble)
    jobs = [make_job(prompt=[13]), make_job()]
    batcher.submit(jobs)
    sinks = finish(jobs)
    assert [sink.ending for sink in sinks] == [FinishReason.FAULT, FinishReason.LENGTH]


def test_a_full_queue_takes_all_of_a_request_or_none(started):
    ensemble = Arithmetic()
    ensemble.gate.clear()
    batcher = started(ensemble, max_concurrent=2, max_queue=3)
    first = [make_job() for _ in range(4)]
    batcher.submit(first)
    with pytest.raises(QueueFullError):
        batcher.submit([make_job() for _ in range(3)])
    ensemble.gate.set()
    finish(first)
    batcher.submit([make_job()])


def test_closing_finishes_what_is_at_hand_or_ends_it_at_the_deadline(started):
    batcher = started(max_concurrent=1)
    jobs = [make_job(max_tokens=30), make_job(max_tokens=30)]
    batcher.submit(jobs)
    batcher.close(30)
    assert [len(sink.tokens) for sink in finish(jobs)] == [30, 30]
    with pytest.raises(ClosingError):
        batcher.submit([make_job()])
    hasty = started()

    def close_now():
        threading.Thread(target=hasty.close, args=(0,)).start()
        while hasty.is_running:
            time.sleep(0.001)

    endless = make_job(max_tokens=3000, sink=ActingAt({5: close_now}))
    hasty.submit([endless])
    [sink] = finish([endless])
    assert (sink.ending, len(sink.tokens)) == (FinishReason.SHUTDOWN, 5)


class Telltale(Curator):
    """What must be found out: a release that takes longer for one world."""

    def release_many(self, ballots):
        if self.state.secret == 3:
            time.sleep(0.001)
        return super().release_many(ballots)


def step_time(started, secret, curator_type):
    observer = Recorder()
    curator = make_curator(secret)
    curator.__class__ = curator_type
    batcher = started(curator=curator, observer=observer)
    job = make_job(max_tokens=40)
    batcher.submit([job])
    finish([job])
    batcher.close(1)
    return np.median(observer.seconds[10:])


def p_value_of_time_against_secret(started, curator_type):
    """Two secrets on one stream of requests, 20 runs each in random order; a rank test of their median step times."""
    samples = {0: [], 3: []}
    order = [0, 3] * 20
    random.Random(5).shuffle(order)
    for secret in order:
        samples[secret].append(step_time(started, secret, curator_type))
    return stats.mannwhitneyu(samples[0], samples[3]).pvalue


def test_time_to_answer_does_not_tell_the_secret(started):
    assert p_value_of_time_against_secret(started, Telltale) < 1e-6
    # Runs in random order are exchangeable: a false alarm has one chance in a million, whatever the machine does.
    assert p_value_of_time_against_secret(started, Curator) > 1e-6
