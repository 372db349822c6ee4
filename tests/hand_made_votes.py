"""Vote tensors made by hand, and one made of random votes with a chosen rate of dissent."""

import numpy as np

from reticent.evaluation.vote_tensor import DecoderVotes, VoteTensor

NUM_CANDIDATES = 8


def tensor_of(votes, targets, public, *, full=None, lengths=None, greedy=None, logits=None):
    """A tensor whose Gumbel votes (and greedy votes, unless given) are `votes`, [N, M]."""
    votes = np.asarray(votes, dtype=np.int32)
    num_positions, num_worlds = votes.shape
    lengths = [num_positions] if lengths is None else lengths
    gumbel, greedy = (decoder_votes(v, public, full) for v in (votes, votes if greedy is None else greedy))
    logits = np.zeros((0, num_worlds, NUM_CANDIDATES), np.float16) if logits is None else logits
    return VoteTensor(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        seconds_I=np.array(lengths) * 0.5,
        targets_N=np.asarray(targets, np.int32),
        candidates_NK=np.tile(np.arange(NUM_CANDIDATES, dtype=np.int32), (num_positions, 1)),
        greedy=greedy,
        gumbel=gumbel,
        full_argmax_N=np.zeros(0, np.int32) if full is None else np.asarray(full, np.int32),
        candidate_counts_L=np.array([NUM_CANDIDATES]),
        mass_positions_P=np.arange(0, num_positions, 2),
        mass_PL=np.full((-(-num_positions // 2), 1), 0.75, np.float32),
        logit_positions_F=np.arange(len(logits)),
        logits_FMK=logits,
    )


def decoder_votes(votes, public, full):
    votes = np.asarray(votes, dtype=np.int32)
    return DecoderVotes(
        worlds_NM=votes,
        public_N=np.asarray(public, np.int32),
        full_N=np.zeros(0, np.int32) if full is None else np.asarray(full, np.int32),
        unanimous_NL=(votes == votes[:, :1]).all(axis=1)[:, None],
    )


def random_tensor(num_worlds=16, num_texts=8, length=80, dissent=0.2, seed=0):
    """Texts of one length; a share of positions is split between two or three tokens, at random among the worlds."""
    generator = np.random.default_rng(seed)
    num_positions = num_texts * length
    votes = np.repeat(generator.integers(0, 4, (num_positions, 1)), num_worlds, axis=1)
    for position in np.flatnonzero(generator.random(num_positions) < dissent):
        votes[position] = generator.integers(0, generator.integers(2, 4), num_worlds)
    targets = np.where(generator.random(num_positions) < 0.7, votes[:, 0], 7)
    public = np.where(generator.random(num_positions) < 0.6, votes[:, 1], 6)
    return tensor_of(votes, targets, public, lengths=[length] * num_texts)
