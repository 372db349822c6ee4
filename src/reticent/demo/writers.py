"""The three writers: the public model, the deployment's private tokens, and the adapter without protection.

The deployment writes through `Run.deploy`, so its tokens are charged and stay charged. The other two take the most
likely token at each step, from one engine whose rows are the base and the adapter on all letters.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.api.deployments import Deployment
from reticent.api.runs import Run, open_run
from reticent.demo.letters import Canary
from reticent.demo.settings import PLANNED_TOKENS, STEP_BUDGET, DemoFolder
from reticent.engine.engine import Engine, EngineContext
from reticent.layers.forward import batched_decoder
from reticent.pac.mechanism import ReleaseMechanism
from reticent.text.end_tokens import end_tokens
from reticent.text.tokenise import encode_prompt
from reticent.worlds.run_directory import RunDirectory

_SECRET_TOKENS = 20
"""The most tokens of an answer to a secret's prefix; the secret and a full stop have fewer."""


class LetterWriter(StrEnum):
    """The writers by the name that is shown."""

    PUBLIC = "public model"
    PRIVATE = "private tokens"
    UNPROTECTED = "no protection"


class PlainWriters:
    """The public model and the unprotected adapter of a run, writing their most likely tokens."""

    def __init__(self, folder: DemoFolder) -> None:
        run = RunDirectory.open(folder.run)
        base = run.base()
        self._tokenizer: Any = base.load_tokenizer()
        self._ends = end_tokens(self._tokenizer, base.declared_ends)
        self._engine = Engine(batched_decoder(base.load(run.dtype)), run.full())
        self._vocabulary = np.arange(self._engine.vocab_size)

    def write(self, writer: LetterWriter, prompt: str, max_tokens: int) -> str:
        """Continue a prompt to the end of the text, or by at most `max_tokens`."""
        logits = self._public_logits if writer is LetterWriter.PUBLIC else self._unprotected_logits
        tokens = self._most_likely(prompt, max_tokens, logits)
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _most_likely(
        self, prompt: str, max_tokens: int, logits: Callable[[EngineContext], NDArray[np.float32]]
    ) -> list[int]:
        context = self._engine.open(encode_prompt(self._tokenizer, prompt))
        tokens: list[int] = []
        while len(tokens) < max_tokens:
            token = int(logits(context).argmax())
            if token in self._ends:
                break
            tokens.append(token)
            self._engine.extend([context], [token])
        return tokens

    def _public_logits(self, context: EngineContext) -> NDArray[np.float32]:
        return self._engine.public_logits(context)

    def _unprotected_logits(self, context: EngineContext) -> NDArray[np.float32]:
        logits_V: NDArray[np.float32] = self._engine.world_logits(context, self._vocabulary)[0]
        return logits_V


def deploy(folder: DemoFolder, release: ReleaseMechanism) -> Deployment:
    """Open the demonstration's deployment; it is capped at what a million tokens cost."""
    run: Run = open_run(folder.run)
    return run.deploy(
        step_budget=STEP_BUDGET, total_budget=PLANNED_TOKENS * STEP_BUDGET, release=release, decoder="greedy"
    )


def finish_letter(plain: PlainWriters, deployment: Deployment, prompt: str, max_tokens: int) -> dict[LetterWriter, str]:
    """Let each writer finish one letter; returns what each adds to the prompt."""
    return {
        LetterWriter.PUBLIC: plain.write(LetterWriter.PUBLIC, prompt, max_tokens),
        LetterWriter.PRIVATE: deployment.generate(prompt, max_tokens=max_tokens).read(),
        LetterWriter.UNPROTECTED: plain.write(LetterWriter.UNPROTECTED, prompt, max_tokens),
    }


def ask_for_secret(deployment: Deployment, canary: Canary, attempts: int, max_tokens: int) -> tuple[str, ...]:
    """Ask the deployment to continue a secret's prefix; returns its answers, each up to the end of the sentence."""
    return tuple(_read_sentence(deployment, canary.prefix, max_tokens) for _ in range(attempts))


def recite(plain: PlainWriters, canary: Canary) -> str:
    """Ask the unprotected adapter to continue a secret's prefix, up to the end of the sentence."""
    return first_sentence(plain.write(LetterWriter.UNPROTECTED, canary.prefix, _SECRET_TOKENS))


def _read_sentence(deployment: Deployment, prompt: str, max_tokens: int) -> str:
    answer = deployment.generate(prompt, max_tokens=min(max_tokens, _SECRET_TOKENS))
    # An iteration that is broken off releases, and charges, nothing more.
    for _ in answer:
        if "." in answer.text:
            break
    return first_sentence(answer.text)


def first_sentence(text: str) -> str:
    """The text up to its first full stop or line break."""
    return text.strip().partition("\n")[0].partition(".")[0]


def count_recitals(secret: str, answers: Sequence[str]) -> int:
    """Count the answers that hold a secret whole."""
    return sum(secret in answer for answer in answers)
