"""The votes of any one model beside those of the worlds: the same candidates, the same coins.

For models that are no world's adapter, such as one trained with differential privacy.

Shape suffixes: N positions of all texts, K candidates, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent.decoding.votes import Decoder, greedy_votes, gumbel_votes
from reticent.errors import InvalidValueError
from reticent.evaluation.vote_casting import VoteSettings
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.randomness import PublicCoins


@torch.inference_mode()
def votes_of_model(
    model: nn.Module,
    texts: Sequence[Sequence[int]],
    tensor: VoteTensor,
    decoder: Decoder,
    settings: VoteSettings,
) -> NDArray[np.int64]:
    """One causal model's vote at every position, int64[N].

    Args:
        model: called as `transformers` causal models are, without virtual rows.
        texts: token ids.
        tensor: the votes of worlds over the same texts; gives the candidates.
        decoder: how the model votes.
        settings: those the tensor was cast with: temperature and coins.

    Raises:
        InvalidValueError: the tensor is of other texts.
    """
    if np.diff(tensor.offsets).tolist() != [len(tokens) - 1 for tokens in texts]:
        raise InvalidValueError("the votes given are of other texts")
    device = next(model.parameters()).device
    votes_N = np.empty(tensor.num_positions, dtype=np.int64)
    for text, tokens in enumerate(texts):
        logits_NV = model(input_ids=torch.tensor([list(tokens[:-1])], device=device)).logits[0].float().cpu().numpy()
        coins = PublicCoins.from_seed(settings.coin_seed, text)
        for step, logits_V in enumerate(logits_NV):
            position = tensor.offsets[text] + step
            candidates_K = np.sort(tensor.candidates_NK[position]).astype(np.int64)
            logits_1K = logits_V[None, candidates_K]
            if decoder is Decoder.GREEDY:
                votes_N[position] = greedy_votes(logits_1K, candidates_K)[0]
            else:
                coins_K = coins.gumbel(step, candidates_K.size)
                votes_N[position] = gumbel_votes(logits_1K, candidates_K, coins_K, settings.temperature)[0]
    return votes_N
