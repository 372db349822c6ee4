"""The operator's report of a distilled model: what it is worth on private text, and what it gives away.

Every figure here is of private texts and is a release of its own, which no ledger counts: the report stays with the
operator, outside the folder that is published.

| secret | how it stands in the report |
|---|---|
| a text among the public ones that the student read | public |
| which half of the corpus a record is in | the bound; a measurement would have to read the realised world |
| whether a record is in the corpus at all | not bounded; measured by attacks on the student |
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from reticent._files import atomic_write_bytes, refuse_undecodable
from reticent._settings import FiniteModel
from reticent.api.audits import Audit, AuditOptions, audit
from reticent.distillation.card import DistilledFolder
from reticent.distillation.student import mean_loss
from reticent.engine.world_scoring import WorldScorer
from reticent.errors import InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.models.base import usable_device
from reticent.protocols import Progress
from reticent.text.corpus import read_corpus
from reticent.text.template import EncodedText, encode, padding_id
from reticent.training.single_training import Texts
from reticent.training.techniques.registry import num_virtual_rows
from reticent.training.text_loss import TextLoss
from reticent.worlds.manifest import FULL_NAME
from reticent.worlds.run_directory import RunDirectory

UTILITY_NAME = "utility.json"
ATTACKS = ("likelihood", "reference", "zlib", "min-k++")
_TEXTS_AT_ONCE = 8


class PrivateUtility(FiniteModel):
    """Mean loss on private texts outside the corpus, in nats a token.

    Attributes:
        base: of the public model.
        student: of the student.
        worlds: of the worlds, their mean: the ensemble without noise.
        full: of the adapter on all records; None where the run has none.
        num_tokens: tokens it was measured on.
    """

    base: float
    student: float
    worlds: float
    full: float | None
    num_tokens: int

    @property
    def share_of_full_gain(self) -> float | None:
        """The student's gain over the public model, as a share of the full-data adapter's; None where that has none."""
        if self.full is None or not self.base > self.full:
            return None
        return (self.base - self.student) / (self.base - self.full)


@dataclass(frozen=True)
class StudentReport:
    """The operator's report.

    Attributes:
        utility: on the texts outside the corpus.
        audit: attacks on the student that tell records of the corpus from other texts.
    """

    utility: PrivateUtility
    audit: Audit


@dataclass(frozen=True)
class StudentReportRequest:
    """A request for a report.

    Attributes:
        student: the distilled model. run: the run that it is from.
        corpus: the private corpus. nonmembers: private texts outside it; text_key, limit: how to read both.
        out: the folder to make, outside the student's.
        model, device: where the base is if it moved, and where to compute.
    """

    student: Path
    run: Path
    corpus: Path
    nonmembers: Path
    out: Path
    text_key: str = "text"
    limit: int | None = None
    model: str | None = None
    device: str = "cpu"


def report_on_student(request: StudentReportRequest, progress: Progress) -> StudentReport:
    """Measure a student on private texts, and write `utility.json` and an audit's report.

    Raises:
        InvalidValueError: the report would stand in the folder that is published.
        RunDirectoryError, ModelError: student, run or base is damaged or another.
        CorpusError, AuditError: texts cannot be read, or the two sets overlap.
        StorageError: something cannot be written.
    """
    refuse_undecodable(request.out)
    if request.out.resolve().is_relative_to(request.student.resolve()):
        raise InvalidValueError(
            f"{request.out} is inside {request.student}, which is published; keep the report elsewhere"
        )
    adapted = DistilledFolder.open(request.student).adapted
    run = RunDirectory.open(request.run)
    adapted.manifest.base.check(run.base(request.model), f"{request.student} was distilled")
    module, tokenizer = adapted.load(adapted.base(request.model), device=request.device)
    template = adapted.template
    found = audit(
        module,
        members=request.corpus,
        nonmembers=request.nonmembers,
        attacks=ATTACKS,
        text_key=request.text_key,
        limit=request.limit,
        out=request.out,
        tokenizer=tokenizer,
        options=AuditOptions(
            reference=request.model or adapted.manifest.base.name,
            template=template.text,
            max_tokens=template.max_tokens,
            eos=template.add_eos,
            device=request.device,
        ),
        progress=progress,
    )
    records = read_corpus(request.nonmembers, text_key=request.text_key, limit=request.limit).records
    texts = [record.text for record in records]
    encoded = [text for text in encode(tokenizer, template, texts) if text.num_scored]
    base = adapted.base(request.model).load(adapted.dtype).to(usable_device(request.device))
    weights = np.array([text.num_scored for text in encode(tokenizer, template, texts)], dtype=np.float64)
    utility = PrivateUtility(
        base=_loss(base, tokenizer, encoded),
        student=_loss(module, tokenizer, encoded),
        worlds=_loss_of_worlds(base, run.worlds(), tokenizer, template, texts, weights),
        full=(
            _loss_of_worlds(base, run.full(), tokenizer, template, texts, weights)
            if FULL_NAME in run.manifest.files
            else None
        ),
        num_tokens=int(weights.sum()),
    )
    atomic_write_bytes(request.out / UTILITY_NAME, (utility.model_dump_json(indent=2) + "\n").encode())
    return StudentReport(utility, found)


def _loss(module: nn.Module, tokenizer: Any, encoded: list[EncodedText]) -> float:
    embedding: Any = module.get_input_embeddings()  # type: ignore[operator]
    device = next(module.parameters()).device
    texts = Texts(encoded, padding_id(tokenizer, len(embedding.weight)), device)
    found = mean_loss(module, TextLoss(module, num_virtual_rows(module)), texts, _TEXTS_AT_ONCE)
    if found is None:
        raise InvalidValueError("no text outside the corpus has a token to predict")
    return found


def _loss_of_worlds(base: Any, adapters: Any, tokenizer: Any, template: Any, texts: list[str], weights: Any) -> float:
    """The mean over adapters of their mean loss, token by token."""
    scorer = WorldScorer(batched_decoder(base), adapters, tokenizer, template, "report")
    means_NM = scorer.mean_logps(texts)
    scored = weights > 0
    return float(-(means_NM[scored] * weights[scored, None]).sum(0).mean() / weights.sum())
