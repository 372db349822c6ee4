"""Distilling a run: private tokens on public texts through the ledger, and a student of them to be published.

| stage | what it needs | what is kept for `resume` |
|---|---|---|
| release | run, public texts, the deployment's ledger | each finished text, then the account |
| training | released tokens, public texts | a checkpoint |
| card | the account, losses | nothing: the record is the last file |

The ledger is closed before training begins. Everything is checked before a deployment is drawn.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._work_folder import WorkFolder
from reticent.api.deployments import DEFAULT_STEP_BUDGET, open_ledger, run_id
from reticent.api.settings import DTypeName, torch_dtype
from reticent.decoding.votes import Decoder, DecodingSettings, require_candidates
from reticent.distillation.card import (
    DISTILLED_NAME,
    DistilledFolder,
    DistilledRecord,
    ReleaseBound,
    is_distilled,
    write_card,
)
from reticent.distillation.releases import (
    ContinuationRelease,
    LabelledText,
    LabelRelease,
    ReleaseMode,
    TextRelease,
    release_texts,
)
from reticent.distillation.student import PublicLoss, Student, StudentSettings, check_student, train_student
from reticent.engine.engine import Engine
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import BudgetExhaustedError, CorpusError, InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.models.base import LanguageModel, usable_device
from reticent.pac.charging import ChargingRule
from reticent.pac.curator import Curator
from reticent.protocols import Progress
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.end_tokens import end_tokens
from reticent.text.template import EncodedText, TextTemplate, encode
from reticent.training.adapted_folder import (
    ADAPT_NAME,
    AdaptedFolder,
    CountsRecord,
    EpochRecord,
    write_adapted,
)
from reticent.worlds.run_directory import RunDirectory

RELEASED_NAME = "released.jsonl"
_ACCOUNT_NAME = "account.json"
_LOSS_NAME = "public_loss.json"


@dataclass(frozen=True)
class DistillRequest:
    """A request to distil a run.

    Attributes:
        run: the run directory.
        prompts: public texts; text_key, limit: how to read them.
        out: the folder to make.
        num_tokens: the most tokens to release.
        mode: whether public texts are labelled or continued.
        prompt_tokens: when they are continued, tokens of each that are read.
        held_out: how many public texts are kept out of training, to measure utility on.
        decoding: how tokens are proposed, voted on and charged.
        total_budget: cap over the deployment's life in nats; None for the one it has.
        charging: the rule by which tokens are charged; None for the deployment's.
        student: what is trained, and how.
        keep_text: whether released tokens are kept in `released.jsonl`.
        max_tokens: cut texts; as the worlds were trained unless given.
        model, dtype, device: where the base is if it moved, and how worlds compute.
        database_url: place of the ledger.
    """

    run: Path
    prompts: Path
    out: Path
    num_tokens: int
    mode: ReleaseMode = ReleaseMode.LABEL
    text_key: str = "text"
    limit: int | None = None
    prompt_tokens: int = 16
    held_out: int = 0
    decoding: DecodingSettings = field(default_factory=lambda: DecodingSettings(Decoder.GUMBEL, DEFAULT_STEP_BUDGET))
    total_budget: float | None = None
    charging: ChargingRule | None = None
    student: StudentSettings = field(default_factory=StudentSettings)
    keep_text: bool = False
    max_tokens: int | None = None
    model: str | None = None
    dtype: DTypeName | None = None
    device: str = "cpu"
    database_url: str | None = None

    def __post_init__(self) -> None:
        _validate.integer_in_range("tokens", self.num_tokens, 1)
        _validate.integer_in_range("prompt-tokens", self.prompt_tokens, 1)
        _validate.integer_in_range("held-out", self.held_out, 0)
        if self.max_tokens is not None:
            _validate.integer_in_range("max-tokens", self.max_tokens, 2)


def distill(request: DistillRequest, progress: Progress, *, resume: bool = False) -> DistilledFolder:
    """Make a distilled model, or finish one.

    Raises:
        CorpusError, ModelError, InvalidValueError: the request cannot be met; no deployment was drawn for it.
        OutputExistsError: the output folder exists and `resume` is not set, or it holds something else.
        RunDirectoryError: the run is damaged, or the folder was begun with another request.
        BudgetExhaustedError: the cap covers no token.
        DeploymentStateError, StorageError: the ledger cannot be opened, or something cannot be written.
        TrainingError: the loss is no longer a number.
    """
    work = WorkFolder(request.out, DISTILLED_NAME, "distilled model")
    work.check_free(resume)
    if work.is_finished:
        finished = DistilledFolder.open(request.out)
        work.check_same({"settings": finished.record.settings}, {"settings": _public_settings(request)}, "made")
        work.tidy()
        progress.note(f"{request.out} is already finished")
        return finished
    return _Distillation(request, work, progress).run()


class _Distillation:
    def __init__(self, request: DistillRequest, work: WorkFolder, progress: Progress) -> None:
        self._request, self._work, self._progress = request, work, progress
        self._device = usable_device(request.device)
        self._run = RunDirectory.open(request.run)
        self._base = self._run.base(request.model)
        self._tokenizer = self._base.load_tokenizer()
        self._template = TextTemplate(max_tokens=self._most_tokens())
        texts = _public_texts(self._run, request)
        self._texts, self._held_out = texts[request.held_out :], texts[: request.held_out]
        self._encoded = self._encode(self._texts)

    def run(self) -> DistilledFolder:
        request, work = self._request, self._work
        released, bound = self._release()
        adapted, measured = self._train(released)
        if request.keep_text:
            atomic_write_bytes(request.out / RELEASED_NAME, self._released_lines(released).encode())
        record = DistilledRecord(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            bound=bound,
            num_tokens=sum(text.num_released for text in released),
            num_texts=len(released),
            settings=_public_settings(request),
            public_loss=measured,
            files={ADAPT_NAME: sha256_of_file(request.out / ADAPT_NAME)},
        )
        folder = write_card(request.out, record, Path(adapted.manifest.base.name).name)
        work.tidy()
        return folder

    def _most_tokens(self) -> int:
        training = self._run.manifest.training
        trained = TextTemplate().max_tokens if training is None else training.max_tokens
        return self._request.max_tokens or trained

    def _encode(self, texts: Sequence[str]) -> list[EncodedText]:
        encoded = encode(self._tokenizer, self._template, texts)
        short = next((number for number, text in enumerate(encoded) if not text.num_scored), None)
        if short is not None:
            raise CorpusError(
                f"{self._request.prompts}: the public text with SHA-256 {text_hash(texts[short])[:12]}… has no token "
                "to predict; remove it"
            )
        return encoded

    def _release(self) -> tuple[list[LabelledText], ReleaseBound]:
        """Release tokens until there are enough, and bound what the deployment has released then."""
        release = self._prepare_release()
        self._work.begin(self._identity())
        folder = self._work.working_files
        account = folder / _ACCOUNT_NAME
        ids = [text.token_ids for text in self._encoded]
        if account.is_file():
            bound = ReleaseBound.model_validate_json(account.read_bytes())
            return release_texts(_refuse, ids, self._request.num_tokens, folder, self._progress), bound
        request, num_worlds = self._request, self._run.manifest.num_worlds
        ledger = open_ledger(request.run, num_worlds, request.total_budget, request.database_url, request.charging)
        try:
            curator = ledger.curator
            # Refused before the first token where the spending could not be published.
            ReleaseBound.of(curator.account, num_worlds, curator.charging_rule)
            released = release_texts(release(curator), ids, request.num_tokens, folder, self._progress)
            bound = ReleaseBound.of(curator.account, num_worlds, curator.charging_rule)
        finally:
            ledger.close()
        num_released = sum(text.num_released for text in released)
        if not num_released:
            raise BudgetExhaustedError(
                f"the total budget of {request.run} covers no token, so there is nothing to learn; distil from a "
                "deployment with budget left, or lower --step-budget"
            )
        if num_released < request.num_tokens:
            end = "the total budget is spent" if released[-1].is_exhausted else "the public texts are at their end"
            self._progress.note(f"{num_released:,} of {request.num_tokens:,} tokens were released: {end}")
        atomic_write_bytes(account, bound.model_dump_json().encode())
        return released, bound

    def _prepare_release(self) -> "_PreparedRelease":
        request = self._request
        model = self._base.load(torch_dtype(request.dtype) or self._run.dtype).to(self._device)
        check_student(model, request.student)
        decoder = batched_decoder(model)
        require_candidates(request.decoding, decoder.architecture.vocab_size)
        context = decoder.architecture.context_length
        if self._template.max_tokens > context:
            raise InvalidValueError(
                f"texts of {self._template.max_tokens} tokens do not fit the model's context of {context}; "
                "give a lower --max-tokens"
            )
        if request.mode is ReleaseMode.CONTINUE and request.prompt_tokens >= self._template.max_tokens:
            raise InvalidValueError(
                f"prompt-tokens must be below max-tokens, {self._template.max_tokens}, got {request.prompt_tokens}"
            )
        return _PreparedRelease(request, self._run, self._base, self._tokenizer, decoder, self._template.max_tokens)

    def _train(self, released: Sequence[LabelledText]) -> tuple[AdaptedFolder, PublicLoss | None]:
        request, folder = self._request, self._work.working_files
        loss_path = folder / _LOSS_NAME
        if (request.out / ADAPT_NAME).is_file():
            stored = json.loads(loss_path.read_text("utf-8"))
            return AdaptedFolder.open(request.out), None if stored is None else PublicLoss.model_validate(stored)
        student = train_student(
            self._base,
            released,
            self._encode(self._held_out),
            request.student,
            folder,
            self._device,
            self._progress,
        )
        measured = student.public_loss
        stored = None if measured is None else measured.model_dump(mode="json")
        atomic_write_bytes(loss_path, json.dumps(stored).encode())
        return self._write_student(student, len(released)), measured

    def _write_student(self, student: Student, num_texts: int) -> AdaptedFolder:
        chosen = self._request.student
        return write_adapted(
            self._request.out,
            student.module,
            self._base,
            technique=chosen.technique,
            settings=chosen.settings,
            template=self._template,
            member_hashes=[text_hash(text) for text in self._texts[:num_texts]],
            heldout_hashes=[text_hash(text) for text in self._held_out],
            counts=CountsRecord(members=num_texts, heldout=len(self._held_out)),
            training=chosen.training,
            epochs=[EpochRecord(training=loss.training) for loss in student.losses],
        )

    def _released_lines(self, released: Sequence[LabelledText]) -> str:
        """Each public text and what was released on it, a JSON object a line."""
        lines = []
        for text, public in zip(released, self._texts, strict=False):
            labels = text.labels.tolist()
            if self._request.mode is ReleaseMode.LABEL:
                facts: dict[str, Any] = {"text": public, "token_ids": text.token_ids.tolist(), "labels": labels}
            else:
                ids = text.token_ids.tolist()
                parts = ids[: text.num_public], ids[text.num_public :]
                prompt, continuation = (self._tokenizer.decode(part, skip_special_tokens=True) for part in parts)
                facts = {"prompt": prompt, "text": continuation}
            lines.append(json.dumps(facts, ensure_ascii=False))
        return "".join(f"{line}\n" for line in lines)

    def _identity(self) -> dict[str, Any]:
        hashes = [text_hash(text) for text in (*self._held_out, *self._texts)]
        return {
            "settings": _public_settings(self._request),
            "run": run_id(self._request.run),
            "prompts": hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
            "template": self._template.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class _PreparedRelease:
    """Everything of a release that can be refused, before there is a curator."""

    request: DistillRequest
    run: RunDirectory
    base: LanguageModel
    tokenizer: Any
    decoder: Any
    max_tokens: int

    def __call__(self, curator: Curator) -> TextRelease:
        settings = replace(self.request.decoding, charging_rule=curator.charging_rule)
        if self.request.mode is ReleaseMode.LABEL:
            return LabelRelease(TeacherForcing(self.decoder, self.run.worlds()), curator, settings)
        stop_tokens = end_tokens(self.tokenizer, self.base.declared_ends)
        engine = Engine(self.decoder, self.run.worlds())
        return ContinuationRelease(engine, curator, settings, self.request.prompt_tokens, self.max_tokens, stop_tokens)


def _refuse(_token_ids: NDArray[np.int64], _limit: int) -> LabelledText:
    raise AssertionError("every text was released before the account was written down")


def _public_texts(run: RunDirectory, request: DistillRequest) -> list[str]:
    """The distinct public texts, in the file's order.

    Raises:
        CorpusError: they cannot be read, too few are left for training, or one is in the run's corpus.
    """
    records = read_corpus(request.prompts, text_key=request.text_key, limit=request.limit).records
    texts = list(dict.fromkeys(record.text for record in records))
    trained_on = run.text_hashes() or frozenset()
    shared = sum(text_hash(text) in trained_on for text in texts)
    if shared:
        raise CorpusError(
            f"{shared} of {len(texts)} texts of {request.prompts} are in the private corpus of {run.folder}; a student "
            "may learn from public texts alone"
        )
    if len(texts) <= request.held_out:
        raise CorpusError(
            f"{request.prompts} has {len(texts)} distinct texts, and {request.held_out} are to be held out; none is "
            "left for training"
        )
    return texts


def _public_settings(request: DistillRequest) -> dict[str, Any]:
    """Settings as the card shows them; nothing of the run."""
    decoding, student = request.decoding, request.student
    settings: dict[str, Any] = {
        "mode": request.mode.value,
        "tokens_asked_for": request.num_tokens,
        "step_budget": decoding.step_budget,
        "release": decoding.release_mechanism.value,
        "decoder": decoding.decoder.value,
        "candidates": decoding.num_candidates,
        "technique": student.technique.value,
        "public_text": student.public_text,
        **{
            name: getattr(student.training, name) for name in ("epochs", "batch_size", "learning_rate", "seed", "dtype")
        },
    }
    if decoding.decoder is Decoder.GUMBEL:
        settings["temperature"] = decoding.temperature
    if request.mode is ReleaseMode.CONTINUE:
        settings["prompt_tokens"] = request.prompt_tokens
    if student.technique.value == "lora":
        settings |= {"rank": student.settings.rank, "alpha": student.settings.alpha}
        settings["target_modules"] = ", ".join(student.settings.target_modules)
    return settings


__all__ = ["DistillRequest", "DistilledFolder", "distill", "is_distilled"]
