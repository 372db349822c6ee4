"""Cast votes against the decoder's own votes, and the folder that keeps them."""

from dataclasses import fields, replace

import numpy as np
import pytest
from rounding import assert_largest, decided_votes
from tiny_models import build_tiny_model

from reticent.decoding.logit_votes import cast_votes
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError, OutputExistsError, RunDirectoryError
from reticent.evaluation.vote_casting import CastingRequest, VoteSettings, cast_vote_tensor, load_votes
from reticent.evaluation.vote_tensor import DecoderVotes, VoteTensor, concatenate_votes
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import batched_decoder
from reticent.randomness import PublicCoins

WORLDS = 4
TEXTS = [[11, 200, 3, 77, 42, 9], [5, 250], [33, 11, 8, 140, 99, 98, 97, 1, 2]]
HASHES = ["a" * 64, "b" * 64, "c" * 64]
SETTINGS = VoteSettings(
    num_candidates=20, candidate_counts=(2, 5, 258, 1000), mass_every=2, logits_every=3, coin_seed=5
)


class Progress:
    def __init__(self, fail_after=10**9):
        self.done, self._left = 0, fail_after

    def note(self, line):
        pass

    def begin(self, what, num_tokens):
        assert num_tokens == sum(map(len, TEXTS))

    def advance(self, num_tokens):
        self.done += num_tokens
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def parts():
    import torch

    decoder = batched_decoder(build_tiny_model("llama"))
    generator = torch.Generator().manual_seed(1)
    modules = select_modules(decoder.architecture, ["attention"], 2)
    down, up = (
        {m.path: 0.12 * torch.randn(WORLDS + 1, *shape(m), generator=generator) for m in modules}
        for shape in (lambda m: (2, m.in_features), lambda m: (m.out_features, 2))
    )
    every = StackedAdapters(down, up, alpha=4.0)
    worlds = StackedAdapters(
        {p: t[:WORLDS] for p, t in down.items()}, {p: t[:WORLDS] for p, t in up.items()}, every.alpha
    )
    return decoder, worlds, every.one(WORLDS)


@pytest.fixture(scope="module")
def forcing(parts):
    return TeacherForcing(*parts)


def request(folder, **changes):
    return CastingRequest(
        **{"tokens": TEXTS, "text_hashes": HASHES, "identity": {"run": "r"}, "folder": folder} | changes
    )


def assert_equal(tensor, other):
    for field in fields(VoteTensor):
        if field.name in ("greedy", "gumbel"):
            for inner in fields(DecoderVotes):
                ours, theirs = (getattr(getattr(t, field.name), inner.name) for t in (tensor, other))
                np.testing.assert_array_equal(ours, theirs, err_msg=f"{field.name}.{inner.name}")
        elif field.name not in ("seconds_I", "spans"):
            np.testing.assert_array_equal(getattr(tensor, field.name), getattr(other, field.name), err_msg=field.name)


def test_votes_are_those_the_decoder_casts_token_by_token(parts, forcing, tmp_path):
    tensor = cast_vote_tensor(forcing, request(tmp_path / "votes"), SETTINGS, Progress())
    decoder, worlds, full = parts
    engine, of_full = Engine(decoder, worlds), Engine(decoder, full)
    np.testing.assert_array_equal(tensor.offsets, [0, 5, 6, 14])
    np.testing.assert_array_equal(tensor.targets_N, [t for text in TEXTS for t in text[1:]])
    np.testing.assert_array_equal(tensor.candidate_counts_L, [2, 5, 20, 258])
    n, all_decided = 0, []
    for index, text in enumerate(TEXTS):
        coins = PublicCoins.from_seed(5, index)
        for step in range(len(text) - 1):
            context, context_full = engine.open(text[: step + 1]), of_full.open(text[: step + 1])
            for name in Decoder:
                settings = DecodingSettings(name, 1.0, num_candidates=20)
                votes = tensor.votes(name)
                decided = decided_votes(engine, context, settings, coins, step)
                expected = cast_votes(engine, context, settings, coins, step)
                np.testing.assert_array_equal(votes.worlds_NM[n][decided], expected[decided])
                if decided_votes(of_full, context_full, settings, coins, step)[0]:
                    assert votes.full_N[n] == cast_votes(of_full, context_full, settings, coins, step)[0]
                for column, count in enumerate(tensor.candidate_counts_L):
                    fewer = replace(settings, num_candidates=int(count))
                    if decided_votes(engine, context, fewer, coins, step).all():
                        at_count = cast_votes(engine, context, fewer, coins, step)
                        assert votes.unanimous_NL[n, column] == (len(set(at_count.tolist())) == 1)
                all_decided.append(decided.all())
            assert tensor.greedy.public_N[n] == tensor.candidates_NK[n, 0]
            assert_largest(tensor.candidates_NK[n, :1], engine.public_logits(context)[None])
            everything = np.arange(engine.vocab_size)
            assert_largest(tensor.full_argmax_N[[n]], of_full.world_logits(context_full, everything))
            n += 1
    assert n == tensor.num_positions
    assert np.mean(all_decided) > 0.9
    # The tiny worlds must differ somewhere and agree somewhere, or agreement above would show little.
    assert 0 < tensor.gumbel.dissent.mean() < 1


def test_mass_and_kept_logits_belong_to_their_positions(parts, forcing, tmp_path):
    tensor = cast_vote_tensor(forcing, request(tmp_path / "votes"), SETTINGS, Progress())
    engine = Engine(*parts[:2])
    np.testing.assert_array_equal(tensor.mass_positions_P, [0, 2, 4, 5, 6, 8, 10, 12])
    np.testing.assert_array_equal(tensor.logit_positions_F, [0, 3, 5, 6, 9, 12])
    prefixes = [text[: step + 1] for text in TEXTS for step in range(len(text) - 1)]
    everything = np.arange(engine.vocab_size)
    for row, position in enumerate(tensor.mass_positions_P):
        logits = engine.world_logits(engine.open(prefixes[position]), everything).astype(np.float64)
        probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        expected = [probabilities[:, tensor.candidates_NK[position, :c]].sum(1).mean() for c in (2, 5, 20)]
        np.testing.assert_allclose(tensor.mass_PL[row], [*expected, 1.0], rtol=1e-4)
    for row, position in enumerate(tensor.logit_positions_F):
        logits = engine.world_logits(engine.open(prefixes[position]), tensor.candidates_NK[position].astype(np.int64))
        np.testing.assert_allclose(tensor.logits_FMK[row], logits - logits.max(1, keepdims=True), atol=1e-2)


def test_interrupted_and_resumed_is_the_same_and_finished_is_reused(forcing, tmp_path):
    whole = cast_vote_tensor(forcing, request(tmp_path / "whole"), SETTINGS, Progress())
    with pytest.raises(KeyboardInterrupt):
        cast_vote_tensor(forcing, request(tmp_path / "cut"), SETTINGS, Progress(fail_after=2))
    with pytest.raises(OutputExistsError, match="--resume"):
        cast_vote_tensor(forcing, request(tmp_path / "cut"), SETTINGS, Progress())
    resumed = cast_vote_tensor(forcing, request(tmp_path / "cut"), SETTINGS, Progress(), resume=True)
    assert_equal(resumed, whole)
    progress = Progress()
    assert_equal(cast_vote_tensor(forcing, request(tmp_path / "cut"), SETTINGS, progress, resume=True), whole)
    assert progress.done == 0
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["manifest.json", "votes.npz"]


@pytest.mark.parametrize(
    ("changes", "settings", "word"),
    [
        ({"identity": {"run": "other"}}, SETTINGS, "run"),
        ({"text_hashes": HASHES[::-1]}, SETTINGS, "texts"),
        ({}, SETTINGS.model_copy(update={"coin_seed": 6}), "coin_seed"),
    ],
)
def test_votes_of_something_else_are_not_reused(forcing, tmp_path, changes, settings, word):
    cast_vote_tensor(forcing, request(tmp_path / "votes"), SETTINGS, Progress())
    with pytest.raises(RunDirectoryError, match=word):
        cast_vote_tensor(forcing, request(tmp_path / "votes", **changes), settings, Progress(), resume=True)


def test_damage_is_found(forcing, tmp_path):
    cast_vote_tensor(forcing, request(tmp_path / "votes"), SETTINGS, Progress())
    path = tmp_path / "votes" / "votes.npz"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunDirectoryError, match="not the file"):
        load_votes(tmp_path / "votes")
    (tmp_path / "votes" / "manifest.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"manifest\.json"):
        load_votes(tmp_path / "votes")


def test_without_a_full_adapter_and_with_too_many_candidates(parts, tmp_path):
    forcing = TeacherForcing(*parts[:2])
    tensor = cast_vote_tensor(forcing, request(tmp_path / "votes"), SETTINGS, Progress())
    assert not tensor.has_full
    assert tensor.full_argmax_N.size == 0
    with pytest.raises(InvalidValueError, match="num_candidates"):
        cast_vote_tensor(forcing, request(tmp_path / "more"), VoteSettings(num_candidates=259), Progress())


def test_only_votes_of_one_kind_are_joined(parts, forcing, tmp_path):
    with_full = cast_vote_tensor(forcing, request(tmp_path / "one"), SETTINGS, Progress())
    without = cast_vote_tensor(TeacherForcing(*parts[:2]), request(tmp_path / "two"), SETTINGS, Progress())
    with pytest.raises(InvalidValueError, match="settings"):
        concatenate_votes([with_full, without])
    with pytest.raises(InvalidValueError, match="at least one text"):
        concatenate_votes([])
