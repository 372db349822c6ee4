"""The corpus guarantee's engine: sums against PEFT one world at a time, and worlds bit for bit blind to each other."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from test_engine_parity import CONTINUATION, PROMPT, peft_logits
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import FAMILIES, build_tiny_model

from reticent.decoding.aggregates import aggregate_step
from reticent.decoding.logit_votes import IntegerVotes, cast_integer_votes
from reticent.dp.relations import Relation
from reticent.dp.release import VOTES_PER_NAT, CorpusSettings
from reticent.engine.corpus_engine import CorpusEngine, require_isolation
from reticent.engine.engine import Engine
from reticent.errors import InvalidValueError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder

CLIP, COUNT = 0.4, 40
ALL = np.ones(NUM_WORLDS, dtype=bool)
KINDS = [
    pytest.param(["attention"], None, id="all blocks"),
    pytest.param(["all-linear"], 1, id="top"),
    pytest.param(["mlp"], 2, id="behind attention"),
]
BEHIND_ATTENTION = {"llama": ["gate_proj", "up_proj", "down_proj"]}


def settings(clip: float = CLIP) -> CorpusSettings:
    return CorpusSettings(clip, 1.0, 1.0, COUNT, NUM_WORLDS, Relation.REPLACEMENT)


def adapters_of(decoder, names: list[str], top: int | None) -> StackedAdapters:
    return random_adapters(decoder, BEHIND_ATTENTION["llama"] if names == ["mlp"] else names, 3, top)


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_are_what_peft_says_of_each_world_alone(family: str) -> None:
    decoder = batched_decoder(build_tiny_model(family))
    adapters = random_adapters(decoder, ["attention"], 3, None)
    occupied = np.arange(NUM_WORLDS) != 1
    engine = CorpusEngine(decoder, adapters, occupied)
    context = engine.open(PROMPT)
    for token in CONTINUATION:
        engine.extend([context], [token])
    [aggregate] = aggregate_step(engine, [context], settings())
    assert not isinstance(aggregate, Exception)
    tokens = PROMPT + CONTINUATION
    with torch.no_grad():
        public = build_tiny_model(family, dtype=torch.float64)(input_ids=torch.tensor([tokens])).logits[0, -1].numpy()

    def log_softmax(logits):
        return logits - np.logaddexp.reduce(logits)

    p = log_softmax(public[aggregate.candidates_K])
    expected = np.zeros(COUNT)
    for world in np.flatnonzero(occupied):
        logits = peft_logits(family, adapters, world, tokens, torch.float64)[-1]
        expected += np.clip(log_softmax(logits[aggregate.candidates_K].astype(np.float64)) - p, -CLIP, CLIP)
    assert sorted(public.argsort()[-COUNT:]) == aggregate.candidates_K.tolist()
    np.testing.assert_allclose(aggregate.public_logp_K, p, atol=2e-5)
    np.testing.assert_allclose(aggregate.sum_K / VOTES_PER_NAT, expected, atol=1e-4)


@pytest.mark.parametrize(("names", "top"), KINDS)
def test_a_public_pass_of_its_own_leaves_all_logits_as_they_were(names: list[str], top: int | None) -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = adapters_of(decoder, names, top)
    apart, together = CorpusEngine(decoder, adapters, ALL), Engine(decoder, adapters)
    candidates = np.arange(0, apart.vocab_size, 3)
    contexts = [engine.open(PROMPT) for engine in (apart, together)]
    for token in [None, *CONTINUATION]:
        for engine, context in zip((apart, together), contexts, strict=True):
            if token is not None:
                engine.extend([context], [token], [[7, 8]])
        found, expected = (
            (engine.public_logits(context), engine.world_logits(context, candidates))
            for engine, context in zip((apart, together), contexts, strict=True)
        )
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def replaced(adapters: StackedAdapters, world: int, number: float) -> StackedAdapters:
    copy = StackedAdapters(
        {path: tensor.clone() for path, tensor in adapters.down.items()},
        {path: tensor.clone() for path, tensor in adapters.up.items()},
        adapters.alpha,
    )
    for tensor in (*copy.down.values(), *copy.up.values()):
        tensor[world] = number
    return copy


def history(decoder, adapters: StackedAdapters, requests: int, with_drafts: bool) -> list[IntegerVotes]:
    """All votes of some requests that decode together: after the prompts, and after two further tokens."""
    engine = CorpusEngine(decoder, adapters, ALL)
    contexts = [engine.open(PROMPT[: 3 + number % 4]) for number in range(requests)]
    votes = [cast_integer_votes(engine, context, COUNT, CLIP, ALL) for context in contexts]
    for token in (5, 250):
        drafts: Sequence[Sequence[int]] | None = [[250, 9]] * requests if with_drafts else None
        engine.extend(contexts, [token] * requests, drafts)
        votes += [cast_integer_votes(engine, context, COUNT, CLIP, ALL) for context in contexts]
    return votes


NOT_FINITE_OR_STRANGE = (0.0, 1e30, float("nan"), float("inf"))


def assert_isolated(
    names: list[str], top: int | None, dtype: torch.dtype, requests: int, with_drafts: bool, worlds: Sequence[int]
) -> None:
    decoder = batched_decoder(build_tiny_model("llama", dtype=dtype))
    adapters = adapters_of(decoder, names, top)
    plain = history(decoder, adapters, requests, with_drafts)
    assert any(votes.votes_MK.any() for votes in plain)
    for world in worlds:
        others = np.arange(NUM_WORLDS) != world
        for number in NOT_FINITE_OR_STRANGE:
            changed = history(decoder, replaced(adapters, world, number), requests, with_drafts)
            for before, after in zip(plain, changed, strict=True):
                assert np.array_equal(before.candidates_K, after.candidates_K)
                assert np.array_equal(before.public_logp_K, after.public_logp_K)
                assert np.array_equal(before.votes_MK[others], after.votes_MK[others]), (world, number)
                if not np.isfinite(number):
                    assert not after.votes_MK[world].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("names", "top"), KINDS)
@pytest.mark.parametrize(("requests", "with_drafts"), [(1, True), (2, False), (8, True)])
def test_no_world_moves_another_worlds_integers(
    names: list[str], top: int | None, dtype: torch.dtype, requests: int, with_drafts: bool
) -> None:
    assert_isolated(names, top, dtype, requests, with_drafts, (0, NUM_WORLDS // 2, NUM_WORLDS - 1))


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_nor_with_two_threads(dtype: torch.dtype) -> None:
    assert_isolated(["attention"], None, dtype, 3, True, (1,))


def test_a_device_that_keeps_worlds_apart_is_accepted() -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, ["attention"], 3, None)
    before = {path: tensor.clone() for path, tensor in adapters.up.items()}
    require_isolation(decoder, adapters, CLIP)
    assert all(torch.equal(adapters.up[path], tensor) for path, tensor in before.items())


@pytest.mark.parametrize("leak", [1e-6, 1e-3])
def test_a_device_that_mixes_rows_is_refused(monkeypatch: pytest.MonkeyPatch, leak: float) -> None:
    whole = Engine.world_logits

    def mixed(self, context, candidates_K):
        logits_MK = whole(self, context, candidates_K)
        # As a scale common to all rows would.
        return logits_MK * np.float32(1 + leak * np.nan_to_num(logits_MK).std())

    monkeypatch.setattr(CorpusEngine, "world_logits", mixed)
    decoder = batched_decoder(build_tiny_model("llama"))
    with pytest.raises(InvalidValueError, match="depend on other worlds"):
        require_isolation(decoder, random_adapters(decoder, ["attention"], 3, None), CLIP)


def test_only_the_public_row_makes_an_error() -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, ["attention"], 3, None)
    broken = adapters
    for world in range(NUM_WORLDS):
        broken = replaced(broken, world, float("nan"))
    engine = CorpusEngine(decoder, broken, ALL)
    [aggregate] = aggregate_step(engine, [engine.open(PROMPT)], settings())
    assert not isinstance(aggregate, Exception)
    assert not aggregate.sum_K.any()
    with pytest.raises(InvalidValueError, match="worlds need one flag each"):
        CorpusEngine(decoder, adapters, ALL[1:])
