"""Who gets a place and when: keys share the batch, whatever one of them asks for. Everything is counted in steps."""

from collections import Counter

import numpy as np
import pytest
from server.engine_parts import ActingAt, Arithmetic, Recorder, Tokens, finish, make_curator, make_job

from reticent.server.fair_queue import STEPS_PER_CHUNK, QueueFullError, select_suspension
from reticent.server.jobs import FinishReason


class Counting(Recorder):
    """An observer that counts steps, and who had a token in each."""

    def __init__(self):
        super().__init__()
        self.keys = []

    def count_step(self, seconds, step):
        self.keys.append(Counter(job.key_id for job, _ in step.tokens))

    def first_step_of(self, key):
        return next(number for number, keys in enumerate(self.keys) if keys[key])


class Holding(Arithmetic):
    """Counts the contexts that are alive."""

    def __init__(self):
        super().__init__()
        self.alive, self.most_alive, self.read = 0, 0, []

    def open(self, prompt):
        held = self

        class Counted(Tokens):
            def __del__(self):
                held.alive -= 1

        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        self.read.append(list(prompt))
        return Counted(prompt)


def saturate(batcher, num_answers=8, max_tokens=100, then=lambda: None, prompt=(1, 2)):
    """Answers of key `greedy`; `then` happens once the first of them has 20 tokens."""
    first = make_job("greedy", max_tokens, prompt, ActingAt({20: then}))
    jobs = [first] + [make_job("greedy", max_tokens, prompt, seed=seed) for seed in range(1, num_answers)]
    batcher.submit(jobs)
    return jobs


@pytest.mark.parametrize(("places", "num_answers"), [(8, 8), (8, 40), (2, 8), (1, 3)])
def test_another_keys_first_token_comes_within_a_few_steps(started, places, num_answers):
    observer, steps_before = Counting(), []
    batcher = started(observer=observer, max_concurrent=places)
    modest = make_job("modest", max_tokens=1)

    def ask():
        steps_before.append(len(observer.keys))
        batcher.submit([modest])

    greedy = saturate(batcher, num_answers, then=ask)
    finish([*greedy, modest])
    # Its prompt is read in three parts, one a step. A single place is free when a turn, after three parts, is over.
    longest_wait = 6 if places > 1 else STEPS_PER_CHUNK * 3 + 6
    assert observer.first_step_of("modest") - steps_before[0] <= longest_wait
    assert [len(job.sink.tokens) for job in greedy] == [100] * num_answers


def test_a_long_prompt_of_one_key_does_not_hold_up_another(started):
    observer, parts_before = Counting(), []
    ensemble = Arithmetic()
    batcher = started(ensemble, observer=observer)
    modest = make_job("modest", max_tokens=1)
    ensemble.at_part[100] = lambda: (parts_before.append(ensemble.parts), batcher.submit([modest]))
    parts_at_end = []
    modest.sink = ActingAt({1: lambda: parts_at_end.append(ensemble.parts)})
    long = make_job("greedy", prompt=[1] * 1000)
    batcher.submit([long])
    finish([long, modest])
    assert parts_at_end[0] - parts_before[0] <= 6


def test_suspended_answers_go_on_where_they_were_and_no_more_contexts_are_held_than_there_are_places(started):
    """Unanimous votes need no noise, so a suspension must not change a token."""
    ensemble, curator = Holding(), make_curator()
    ensemble.world_logits = lambda context, ids: np.cos(ids * (context.length % 7 + 1.0))[None].repeat(4, 0)
    batcher = started(ensemble, curator, max_concurrent=4)
    others = [make_job(key, max_tokens=30, seed=seed) for seed, key in enumerate("bcdefg" * 2)]
    greedy = saturate(
        batcher, 6, then=lambda: batcher.submit(others[:1]) or [batcher.submit([job]) for job in others[1:]]
    )
    finish(greedy + others)
    assert ensemble.most_alive == 4
    resumed = [prompt for prompt in ensemble.read if len(prompt) > 2]
    assert resumed
    for job in greedy + others:
        alone, expected = Tokens(job.prompt), []
        for step in range(job.max_tokens):
            ids = np.sort(np.argsort(-ensemble.public_logits(alone), kind="stable")[:8])
            expected.append(int(ids[np.argmax(np.cos(ids * (alone.length % 7 + 1.0)) + job.coins.gumbel(step, 8))]))
            alone.tokens.append(expected[-1])
        assert job.sink.tokens == expected
        assert job.sink.ending is FinishReason.LENGTH
    assert curator.state.tokens_released == 6 * 100 + 12 * 30


def test_more_keys_than_places_take_turns(started):
    observer = Counting()
    batcher = started(observer=observer, max_concurrent=2)
    keys = "abcdef"
    jobs = [make_job(key, max_tokens=400) for key in keys]
    batcher.submit(jobs[:1])
    for job in jobs[1:]:
        batcher.submit([job])
    finish(jobs)
    assert max(observer.first_step_of(key) for key in keys) <= 8 * STEPS_PER_CHUNK
    # Long answers keep their places for longer, so that reading stays a small share.
    assert len(observer.keys) <= 6 * 400


def test_a_key_alone_is_never_suspended(started):
    ensemble = Holding()
    batcher = started(ensemble, max_concurrent=4)
    finish(saturate(batcher, 12))
    assert len(ensemble.read) == 12


def test_a_suspended_answer_is_cancelled_at_once(started):
    batcher = started(max_concurrent=1)
    cancelled = []

    def leave():
        batcher.cancel(greedy[0])
        cancelled.append(greedy[0].sink.ending)

    other = make_job("modest", max_tokens=3, sink=ActingAt({2: leave}))
    greedy = saturate(batcher, 1, max_tokens=2000, then=lambda: batcher.submit([other]))
    finish([*greedy, other])
    assert cancelled == [FinishReason.CANCELLED]
    assert 20 <= len(greedy[0].sink.tokens) < 2000


def test_a_suspended_answer_that_cannot_be_read_again_ends_alone(started):
    ensemble = Arithmetic()
    read = ensemble.open

    def fails_on_tokens(prompt):
        if len(prompt) > 2:
            raise MemoryError
        return read(prompt)

    ensemble.open = fails_on_tokens
    curator = make_curator()
    batcher = started(ensemble, curator, max_concurrent=2)
    other = make_job("modest", max_tokens=3)
    greedy = saturate(batcher, 2, then=lambda: batcher.submit([other]))
    finish([*greedy, other])
    assert sorted(job.sink.ending for job in greedy) == [FinishReason.FAULT, FinishReason.LENGTH]
    assert other.sink.ending is FinishReason.LENGTH
    assert curator.state.tokens_released == sum(len(job.sink.tokens) for job in [*greedy, other])


def test_the_line_of_one_key_may_be_full_and_others_find_places(started):
    ensemble = Arithmetic()
    ensemble.gate.clear()
    batcher = started(ensemble, max_concurrent=2, max_queue=10)
    greedy = [make_job("greedy") for _ in range(12)]
    batcher.submit(greedy)
    with pytest.raises(QueueFullError):
        batcher.submit([make_job("greedy") for _ in range(3)])
    others = [make_job(key) for key in "abc" for _ in range(10)]
    for number in range(3):
        batcher.submit(others[10 * number : 10 * number + 10])
    ensemble.gate.set()
    assert {sink.ending for sink in finish(greedy + others)} == {FinishReason.LENGTH}


def schedule_of(batcher, observer, ensemble):
    """Who had a token in each step, and how much was read each time, for one stream of requests."""
    others = [make_job(key, max_tokens=40, seed=seed) for seed, key in enumerate("bbc")]
    greedy = saturate(batcher, 5, then=lambda: [batcher.submit([job]) for job in others])
    finish(greedy + others)
    batcher.close(5)
    return observer.keys, [len(prompt) for prompt in ensemble.read]


def test_the_schedule_does_not_depend_on_the_realised_world(started):
    """The worlds dissent, and for every secret the same steps are taken and the same is read."""
    schedules = []
    for secret in range(4):
        observer, ensemble, curator = Counting(), Holding(), make_curator(secret)
        schedules.append(schedule_of(started(ensemble, curator, observer, max_concurrent=3), observer, ensemble))
        assert curator.state.dissenting_steps > 0
    assert all(schedule == schedules[0] for schedule in schedules)
    assert len(set(schedules[0][1])) > 1


def place(key, steps=0, num_chunks=1, is_read=True):
    job = make_job(key)
    job.steps_since_prefill, job.num_chunks, job.context = steps, num_chunks, object() if is_read else None
    return job


def test_which_answer_makes_place():
    older, newer, unread = place("a", 9), place("a", 3), place("a", 0, is_read=False)
    other = place("b", 50)
    assert select_suspension([newer, older, unread, other], "c") is older
    assert select_suspension([unread, place("a", 0, is_read=False)], "c") is None
    # Nothing is gained by exchanging what is evenly shared, nor for the key that has the most already.
    assert select_suspension([older, newer, other, place("b")], "a") is None
    assert select_suspension([older, newer, other], "b") is None
    # With more keys than places, a turn has its length.
    assert select_suspension([place("a", STEPS_PER_CHUNK - 1), place("b", 5)], "c") is None
    assert select_suspension([place("a", 2 * STEPS_PER_CHUNK - 1, num_chunks=2), place("b", 5)], "c") is None
    over = place("a", 2 * STEPS_PER_CHUNK, num_chunks=2)
    assert select_suspension([over, place("b", 5)], "c") is over
