"""Computing a `VoteTensor`: text by text, resumably, into a folder that says what it holds.

    votes.npz       the tensor
    manifest.json   run, texts by hash, settings and versions; written last, so that the folder is complete or is not

Coins are public: those of text i at position n are `PublicCoins.from_seed(coin_seed, i).gumbel(n, k)`, in ascending
order of candidate ids, so every Gumbel vote can be cast again from the same logits.

Shape suffixes as in `vote_tensor`; J rows (public model, full-data adapter if any, worlds).
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._records import package_versions
from reticent._settings import FiniteModel, FrozenModel
from reticent._work_folder import WorkFolder
from reticent.decoding.votes import Decoder, greedy_votes, gumbel_votes
from reticent.engine.teacher_forced import PositionBlock, TeacherForcing
from reticent.errors import RunDirectoryError
from reticent.evaluation.vote_tensor import DecoderVotes, VoteTensor, concatenate_votes
from reticent.protocols import Progress
from reticent.randomness import PublicCoins

SCHEMA_VERSION = 1
VOTES_NAME = "votes.npz"
MANIFEST_NAME = "manifest.json"
CANDIDATE_COUNTS = (10, 20, 50, 100, 200, 500, 1000)


class VoteSettings(FiniteModel):
    """Settings of the votes.

    Attributes:
        num_candidates: k of the votes that are kept.
        temperature: of the Gumbel decoder.
        coin_seed: public; fixes every coin.
        candidate_counts: the numbers of candidates at which stability is measured; larger ones than the vocabulary are
            left out.
        mass_every: interval, in positions, at which the probability inside the candidates is measured; each measurement
            costs one row of the vocabulary a world.
        logits_every: interval, in positions, at which the worlds' logits are kept, for sampling fidelity.
    """

    num_candidates: int = Field(200, ge=1)
    temperature: float = Field(1.0, gt=0)
    coin_seed: int = Field(0, ge=0)
    candidate_counts: tuple[int, ...] = CANDIDATE_COUNTS
    mass_every: int = Field(4, ge=1)
    logits_every: int = Field(16, ge=1)

    def counts_within(self, vocab_size: int) -> list[int]:
        """The numbers of candidates to measure, k among them, rising."""
        return sorted({count for count in (*self.candidate_counts, self.num_candidates) if 1 <= count <= vocab_size})


class VoteManifest(FrozenModel):
    """The contents of a folder of votes."""

    schema_version: int = Field(strict=True, ge=1)
    created: str
    identity: dict[str, Any]
    text_hashes: tuple[str, ...]
    settings: VoteSettings
    num_worlds: int
    num_positions: int
    vocab_size: int
    versions: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class CastingRequest:
    """A request to cast votes.

    Attributes:
        tokens: the texts' token ids, at least two each.
        text_hashes: their SHA-256, aligned.
        identity: what else the votes depend on, as plain JSON values: the run's hash, the type, the length limit.
        folder: where the votes go.
        is_scored: of each text, the tokens that are voted on, bool[tokens]; all but the first unless given.
    """

    tokens: Sequence[Sequence[int]]
    text_hashes: Sequence[str]
    identity: dict[str, Any]
    folder: Path
    is_scored: Sequence[NDArray[np.bool_]] | None = None


def cast_vote_tensor(
    forcing: TeacherForcing,
    request: CastingRequest,
    settings: VoteSettings,
    progress: Progress,
    *,
    resume: bool = False,
) -> VoteTensor:
    """Compute the votes of all texts, or finish or reuse those of the same request.

    Raises:
        OutputExistsError: the folder is begun or complete and `resume` is not set, or holds something else.
        RunDirectoryError: it was made with another run, texts or settings.
        StorageError: it cannot be written; resume when there is room.
    """
    work = WorkFolder(request.folder, MANIFEST_NAME, "set of votes")
    work.check_free(resume)
    wanted = _requested_facts(request, settings)
    if work.is_finished:
        manifest = read_vote_manifest(request.folder)
        work.check_same(_recorded_facts(manifest), wanted, "made")
        return load_votes(request.folder)
    work.begin(wanted)
    progress.begin("votes", sum(len(tokens) for tokens in request.tokens))
    parts = []
    for index, tokens in enumerate(request.tokens):
        path = work.working_files / f"text-{index:06d}.npz"
        if not path.is_file():
            coins = PublicCoins.from_seed(settings.coin_seed, index)
            scored = None if request.is_scored is None else request.is_scored[index]
            votes_of_text(forcing, tokens, coins, settings, scored).save(path)
        parts.append(VoteTensor.load(path))
        progress.advance(len(tokens))
    tensor = concatenate_votes(parts)
    tensor.save(request.folder / VOTES_NAME)
    _write_manifest(forcing, request, settings, tensor)
    work.tidy()
    return tensor


def votes_of_text(
    forcing: TeacherForcing,
    tokens: Sequence[int],
    coins: PublicCoins,
    settings: VoteSettings,
    is_scored: NDArray[np.bool_] | None = None,
) -> VoteTensor:
    """The votes at every position of one text, or at those whose next token is scored.

    Raises:
        InvalidValueError: the text is too short or too long, or there are more candidates than tokens.
    """
    counts = settings.counts_within(forcing.vocab_size)
    blocks, began = [], time.perf_counter()
    seconds = 0.0
    # k is not clipped as the other counts are: more candidates than tokens are refused.
    positions = None if is_scored is None else np.flatnonzero(is_scored[1:])
    for block in forcing.blocks(tokens, max(*counts, settings.num_candidates), settings.mass_every, positions):
        seconds += time.perf_counter() - began
        blocks.append(_votes_of_block(block, coins, settings, counts))
        began = time.perf_counter()
    merged = concatenate_votes(blocks)
    targets_N = np.asarray(tokens[1:], dtype=np.int32)[slice(None) if positions is None else positions]
    plain = {name: value for name, value in vars(merged).items() if name != "spans"}
    return VoteTensor(
        **plain | {"offsets": np.array([0, len(targets_N)]), "seconds_I": np.array([seconds]), "targets_N": targets_N}
    )


def load_votes(folder: Path) -> VoteTensor:
    """Read a folder of votes and verify its hash.

    Raises:
        RunDirectoryError: it is missing, unfinished or damaged.
    """
    manifest = read_vote_manifest(folder)
    path = folder / VOTES_NAME
    if not path.is_file() or sha256_of_file(path) != manifest.files.get(VOTES_NAME):
        raise RunDirectoryError(f"{path} is missing or is not the file that was written; delete {folder} and run again")
    return VoteTensor.load(path)


def read_vote_manifest(folder: Path) -> VoteManifest:
    """Read the manifest of a folder of votes.

    Raises:
        RunDirectoryError: there is none, or it is of another schema.
    """
    path = folder / MANIFEST_NAME
    try:
        manifest = VoteManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise RunDirectoryError(f"{path} does not describe a set of votes; delete {folder} and run again") from None
    if manifest.schema_version != SCHEMA_VERSION:
        raise RunDirectoryError(f"{path} has schema {manifest.schema_version}, this version reads {SCHEMA_VERSION}")
    return manifest


def _votes_of_block(
    block: PositionBlock, coins: PublicCoins, settings: VoteSettings, counts: Sequence[int]
) -> VoteTensor:
    num_positions, k = len(block.candidates_NK), settings.num_candidates
    here = np.arange(num_positions)
    kept = (block.start + here) % settings.logits_every == 0
    rows = [block.public_NK[None], *([] if block.full_NK is None else [block.full_NK[None]]), block.worlds_MNK]
    logits_JNK = np.concatenate(rows)
    has_full = block.full_NK is not None
    kept_logits_MFK = block.worlds_MNK[:, kept, :k]
    return VoteTensor(
        offsets=np.array([0, num_positions]),
        seconds_I=np.zeros(1),
        targets_N=np.zeros(num_positions, dtype=np.int32),
        candidates_NK=block.candidates_NK[:, :k].astype(np.int32),
        greedy=_cast_block(Decoder.GREEDY, block, logits_JNK, has_full, coins, settings, counts),
        gumbel=_cast_block(Decoder.GUMBEL, block, logits_JNK, has_full, coins, settings, counts),
        full_argmax_N=np.zeros(0, np.int32) if block.full_argmax_N is None else block.full_argmax_N.astype(np.int32),
        candidate_counts_L=np.array(counts),
        mass_positions_P=block.normalised_P,
        mass_PL=_mass(block, counts),
        logit_positions_F=here[kept],
        logits_FMK=(kept_logits_MFK - kept_logits_MFK.max(-1, keepdims=True)).swapaxes(0, 1).astype(np.float16),
    )


def _cast_block(
    decoder: Decoder,
    block: PositionBlock,
    logits_JNK: NDArray[np.float32],
    has_full: bool,
    coins: PublicCoins,
    settings: VoteSettings,
    counts: Sequence[int],
) -> DecoderVotes:
    num_positions = len(block.candidates_NK)
    votes_NJ = np.empty((num_positions, len(logits_JNK)), dtype=np.int32)
    unanimous_NL = np.empty((num_positions, len(counts)), dtype=np.bool_)
    first_world = 1 + has_full
    for n, candidates_K in enumerate(block.candidates_NK):
        for column, count in enumerate(counts):
            votes_J = _vote(
                decoder, logits_JNK[:, n, :count], candidates_K[:count], coins, block.start + n, settings.temperature
            )
            unanimous_NL[n, column] = (votes_J[first_world:] == votes_J[first_world]).all()
            if count == settings.num_candidates:
                votes_NJ[n] = votes_J
    return DecoderVotes(
        worlds_NM=votes_NJ[:, first_world:],
        public_N=votes_NJ[:, 0],
        full_N=votes_NJ[:, 1] if has_full else np.zeros(0, np.int32),
        unanimous_NL=unanimous_NL,
    )


def _vote(
    decoder: Decoder,
    logits_JK: NDArray[np.float32],
    candidates_K: NDArray[np.int64],
    coins: PublicCoins,
    step: int,
    temperature: float,
) -> NDArray[np.int64]:
    if decoder is Decoder.GREEDY:
        return greedy_votes(logits_JK, candidates_K)
    by_id = candidates_K.argsort()
    return gumbel_votes(logits_JK[:, by_id], candidates_K[by_id], coins.gumbel(step, by_id.size), temperature)


def _mass(block: PositionBlock, counts: Sequence[int]) -> NDArray[np.float32]:
    """Share of the worlds' probability inside the first L candidates, mean over worlds, float32[P, L]."""
    logits_MPK = block.worlds_MNK[:, block.normalised_P].astype(np.float64)
    inside_MPK = np.exp(logits_MPK - block.worlds_log_normaliser_MP[..., None]).cumsum(axis=-1)
    mass_PL: NDArray[np.float64] = inside_MPK[..., np.asarray(counts) - 1].mean(axis=0)
    return mass_PL.astype(np.float32)


def _requested_facts(request: CastingRequest, settings: VoteSettings) -> dict[str, Any]:
    return {
        **request.identity,
        "settings": settings.model_dump(mode="json"),
        "texts": list(request.text_hashes),
    }


def _recorded_facts(manifest: VoteManifest) -> dict[str, Any]:
    return {
        **manifest.identity,
        "settings": manifest.settings.model_dump(mode="json"),
        "texts": list(manifest.text_hashes),
    }


def _write_manifest(
    forcing: TeacherForcing, request: CastingRequest, settings: VoteSettings, tensor: VoteTensor
) -> None:
    manifest = VoteManifest(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        identity=request.identity,
        text_hashes=tuple(request.text_hashes),
        settings=settings,
        num_worlds=forcing.num_worlds,
        num_positions=tensor.num_positions,
        vocab_size=forcing.vocab_size,
        versions=package_versions(),
        files={VOTES_NAME: sha256_of_file(request.folder / VOTES_NAME)},
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n"
    atomic_write_bytes(request.folder / MANIFEST_NAME, text.encode())
