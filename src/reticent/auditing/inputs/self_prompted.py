"""SPV-MIA's reference (NeurIPS 2024): the base, adapted to what the target itself writes.

The target is given the beginnings of texts it was not trained on, and continues each by sampling. A model adapted to
those texts has learnt the target's domain and manner, but none of its members, so that what remains between the two is
memory of the members. The beginnings must not be those of texts that are scored.

Everything is kept in a folder: what the target wrote (texts, so readable by their owner alone), and the adapted
reference; a killed run resumes where it stopped.

Shape suffixes: B rows, V vocabulary.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent._files import atomic_write_bytes, json_lines
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import AuditError
from reticent.protocols import Progress
from reticent.text.corpus import text_hash
from reticent.text.template import EncodedText, TextTemplate
from reticent.training.adapted_folder import AdaptedFolder
from reticent.training.settings import DTypeName, Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings
from reticent.training.trainer import AdaptRequest, adapt

_ROWS_AT_ONCE = 16
_MOST_LIKELY = 50
"""Number of most likely tokens that a token is drawn from, as in the paper's public code."""


@dataclass(frozen=True)
class SelfPrompting:
    """Settings of the prompts to the target and of the reference's training.

    Attributes:
        num_texts: how many texts the target writes; beginnings are used in turn.
        prompt_tokens: tokens of each beginning.
        max_tokens: a text's most tokens, its beginning included.
        seed: of the sampling and of the training.
        technique: what adapts the reference; settings: its sizes.
        epochs: of the training.
        learning_rate: of the training.
        dtype: of the training.
    """

    num_texts: int = 200
    prompt_tokens: int = 16
    max_tokens: int = 128
    seed: int = 0
    technique: Technique = Technique.LORA
    settings: TechniqueSettings = dataclass_field(default_factory=TechniqueSettings)
    epochs: int = 2
    learning_rate: float = 3e-4
    dtype: DTypeName = "float32"


def self_prompted_texts(
    scorer: ModelScorer, beginnings: Sequence[str], prompting: SelfPrompting, store: TextStore, progress: Progress
) -> list[str]:
    """Let the target write one text for each of the chosen beginnings; blank ones are left out.

    A text depends on the model, its beginning, its number and the seed, not on the texts written beside it.

    Args:
        scorer: the target.
        beginnings: texts it was not trained on and that are not scored; their first tokens are used.
        prompting: how.
        store: what is written already, and where new texts are kept.
        progress: called with the number of tokens written.

    Raises:
        AuditError: no beginning is long enough.
    """
    return [text for _, text in _write(scorer, beginnings, prompting, store, progress)]


def _write(
    scorer: ModelScorer, beginnings: Sequence[str], prompting: SelfPrompting, store: TextStore, progress: Progress
) -> list[tuple[EncodedText, str]]:
    """The texts that are not blank, each with its beginning."""
    prompts = _prompts(scorer, beginnings, prompting.prompt_tokens)
    held: dict[str, str] = store.read()
    names = [_name(scorer, prompts[i % len(prompts)], i, prompting) for i in range(prompting.num_texts)]
    missing = [number for number, name in enumerate(names) if name not in held]
    longest = min(prompting.max_tokens, scorer.context_length or prompting.max_tokens)
    num_new = max(1, longest - prompting.prompt_tokens)
    progress.begin("texts of the target's own", len(names) * num_new)
    progress.advance((len(names) - len(missing)) * num_new)
    for start in range(0, len(missing), _ROWS_AT_ONCE):
        numbers = missing[start : start + _ROWS_AT_ONCE]
        rows = [prompts[number % len(prompts)] for number in numbers]
        draw = _Sampler([np.random.default_rng([prompting.seed, number]) for number in numbers])
        new_BN = scorer.continuations(rows, draw, num_new)
        written = {
            names[number]: _decode_text(scorer, row, new)
            for number, row, new in zip(numbers, rows, new_BN, strict=True)
        }
        store.add(written)
        held |= written
        progress.advance(len(numbers) * num_new)
    pairs = ((prompts[number % len(prompts)], held[name]) for number, name in enumerate(names))
    return [(prompt, text) for prompt, text in pairs if text.strip()]


def self_prompted_reference(
    scorer: ModelScorer,
    base: str,
    beginnings: Sequence[str],
    prompting: SelfPrompting,
    folder: Path,
    progress: Progress,
) -> AdaptedFolder:
    """The base adapted to what the target writes.

    Args:
        scorer: the target.
        base: the base model, as `resolve_base_model` takes it.
        beginnings: texts it was not trained on and that are not scored.
        prompting: how.
        folder: where everything is kept.
        progress: what is done.

    Raises:
        AuditError: no beginning is long enough, or the target writes nothing.
        StorageError: the disk is full.
    """
    identity = "\n".join(("reticent self-prompted 2", scorer.fingerprint, base, repr(prompting), *_hashes(beginnings)))
    own = folder / f"self-prompted-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    written = _write(scorer, beginnings, prompting, TextStore(own / "written.jsonl"), progress)
    if len({text for _, text in written}) < 2:
        raise AuditError("the target writes no text, so there is nothing to adapt SPV-MIA's reference to")
    corpus = own / "corpus.jsonl"
    rows = ({"text": text, "input": _decode_input(scorer, prompt)} for prompt, text in written)
    atomic_write_bytes(corpus, json_lines(rows))
    # The target writes a template's surroundings itself, so none are put around what it wrote.
    template = TextTemplate(
        encoder_input="{input}" if scorer.template.encoder_input else "",
        max_tokens=scorer.template.max_tokens,
        add_eos=scorer.template.add_eos,
    )
    request = AdaptRequest(
        corpus=corpus,
        model=base,
        out=own / "reference",
        technique=prompting.technique,
        settings=prompting.settings,
        template=template,
        training=SingleTrainingSettings(
            epochs=prompting.epochs,
            learning_rate=prompting.learning_rate,
            seed=prompting.seed,
            dtype=prompting.dtype,
        ),
    )
    return adapt(request, progress, resume=(own / "reference").exists())


class _Sampler:
    """Draws each row's next token from its own stream."""

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self._generators = generators

    def __call__(self, logits_BV: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.array(
            [
                _sample_token(logits_V, generator)
                for logits_V, generator in zip(logits_BV, self._generators, strict=True)
            ],
            dtype=np.int64,
        )


def _sample_token(logits_V: NDArray[np.float32], generator: np.random.Generator) -> int:
    """A draw from the softmax of the largest logits: the place of the largest of logit plus Gumbel noise."""
    likely = np.sort(np.argpartition(-logits_V, min(_MOST_LIKELY, len(logits_V)) - 1)[:_MOST_LIKELY])
    return int(likely[np.argmax(logits_V[likely] + generator.gumbel(size=len(likely)))])


def _prompts(scorer: ModelScorer, beginnings: Sequence[str], num_tokens: int) -> list[EncodedText]:
    """The first `num_tokens` tokens of every text that has more."""
    return [
        replace(text, token_ids=text.token_ids[:num_tokens], is_scored=text.is_scored[:num_tokens], truncated=True)
        for text in _encode_prompts(scorer, beginnings)
        if len(text.token_ids) > num_tokens
    ] or _none_long_enough(num_tokens)


def _encode_prompts(scorer: ModelScorer, texts: Sequence[str]) -> list[EncodedText]:
    return scorer.encode(list(dict.fromkeys(texts)))


def _none_long_enough(num_tokens: int) -> list[EncodedText]:
    raise AuditError(
        f"no non-member has more than the {num_tokens} tokens that SPV-MIA prompts the target with; give longer texts"
    )


def _decode_text(scorer: ModelScorer, prompt: EncodedText, new_N: NDArray[np.int64]) -> str:
    """Beginning and continuation as text, up to the end of text."""
    ends = np.flatnonzero(new_N == scorer.tokenizer.eos_token_id)
    kept = new_N[: ends[0]] if len(ends) else new_N
    text: str = scorer.tokenizer.decode([*prompt.token_ids, *kept], skip_special_tokens=True)
    return text


def _decode_input(scorer: ModelScorer, prompt: EncodedText) -> str:
    """The input that an encoder-decoder's encoder read before a text was written; empty for a causal model."""
    if prompt.input_ids is None:
        return ""
    text: str = scorer.tokenizer.decode(prompt.input_ids, skip_special_tokens=True)
    return text


def _name(scorer: ModelScorer, prompt: EncodedText, number: int, prompting: SelfPrompting) -> str:
    read = "" if prompt.input_ids is None else str(prompt.input_ids.tolist())
    parts = (scorer.fingerprint, str(prompt.token_ids.tolist()), read, str(number), str(prompting.seed))
    return text_hash("\n".join((*parts, str(prompting.max_tokens))))


def _hashes(texts: Sequence[str]) -> list[str]:
    return [text_hash(text) for text in texts]
