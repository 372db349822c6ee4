"""Audits: attacks on a model, an adapter, a world of a run or an endpoint, and what they find.

>>> import reticent
>>> reticent.AuditOptions(confidence=1.5)
Traceback (most recent call last):
reticent.errors.InvalidValueError: confidence must lie strictly between 0 and 1, got 1.5
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reticent._validate import integer_in_range, open_probability, positive_finite
from reticent.api.progress import SilentProgress
from reticent.api.runs import Run
from reticent.api.settings import DTypeName, torch_dtype
from reticent.errors import InvalidValueError
from reticent.protocols import Progress

if TYPE_CHECKING:
    from reticent.auditing.attacks.registry import Attack
    from reticent.auditing.canaries.planting import Canary
    from reticent.auditing.owners import Owners
    from reticent.auditing.results import AttackResult, AuditResult
    from reticent.auditing.run import AuditRequest
    from reticent.auditing.targets.targets import Target, TargetOptions
    from reticent.text.corpus import TextRecord
    from reticent.text.fields import RecordLayout
    from reticent.text.in_memory import TextRows


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Settings of an audit; every one has a default.

    Attributes:
        reference: model before adaptation; an adapter's own base unless given.
        mlm: masked language model that makes neighbours; the target's base unless given.
        shadows: outputs of `reticent adapt` that serve as shadow models.
        world: this world of a run is audited; the others are its shadow models.
        canaries: `canaries.jsonl` of `reticent canaries plant`.
        model: another place of the base model; on a server, the model's name.
        template: what the model reads of a text, with columns in braces, such as {text}; as stored unless given.
        encoder_input: input of an encoder-decoder model's encoder, also with columns; as stored unless given.
        answer_key: the column of the template that is scored; as stored, or all, unless given.
        max_tokens: cut texts to this many tokens; as stored, or 256, unless given.
        eos: close texts that are not cut; as stored, or yes, unless given.
        dtype: type to compute in; as trained unless given.
        device: `cpu`, `cuda`, …; of models that are opened by name.
        batch_tokens: tokens computed at once.
        seed: of neighbours, shots, bootstrap and folds.
        bootstrap: resamples of the texts for each interval.
        confidence: of every interval and bound.
        neighbours: neighbours of each text.
        paraphrases: paraphrases of each text, for spv.
        shots: non-members in the prefix, for recall.
        candidates: other secrets a canary is ranked among.
        samples: continuations drawn for each canary, and for each text by samia.
        places: places of each text at which a server is asked for the next token, at most.
        cache: folder of finished passes; `cache` in the output folder unless given.
        resume: use and fill the cache.
        api_key_env: environment variable with a server's key.
        timeout: seconds a request to a server may take.
        show_texts: put the texts into `scores.parquet`.

    Raises:
        InvalidValueError: a value is out of range.
    """

    reference: str | None = None
    mlm: str | None = None
    shadows: tuple[str, ...] = ()
    world: int | None = None
    canaries: str | PathLike[str] | None = None
    model: str | None = None
    template: str | None = None
    encoder_input: str | None = None
    answer_key: str | None = None
    max_tokens: int | None = None
    eos: bool | None = None
    dtype: DTypeName | None = None
    device: str = "cpu"
    batch_tokens: int = 2048
    seed: int = 0
    bootstrap: int = 2000
    confidence: float = 0.95
    neighbours: int = 25
    paraphrases: int = 10
    shots: int = 10
    candidates: int = 1000
    samples: int = 10
    places: int = 64
    cache: str | PathLike[str] | None = None
    resume: bool = True
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    show_texts: bool = False

    def __post_init__(self) -> None:
        integer_in_range("seed", self.seed, 0)
        open_probability("confidence", self.confidence)
        for name in ("bootstrap", "neighbours", "paraphrases", "shots", "candidates", "places", "batch_tokens"):
            integer_in_range(name, getattr(self, name), 1)
        integer_in_range("samples", self.samples, 0)
        positive_finite("timeout", self.timeout)


@dataclass(frozen=True)
class Audit:
    """A finished audit.

    Attributes:
        result: everything it found, as the record that `report.json` holds.
        folder: the folder with its files; None where none was asked for.
    """

    result: "AuditResult"
    folder: Path | None
    _scores: bytes = field(repr=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain record an attack: AUC and TPR at 1 % FPR with their intervals, and the texts scored."""
        return [_row(attack) for attack in self.result.attacks]

    def figures(self) -> Any:
        """Return `rows()` as a pandas DataFrame where pandas is installed, else as plain records."""
        try:
            pandas = import_module("pandas")  # used where it is, and no dependency
        except ImportError:
            return self.rows()
        return pandas.DataFrame(self.rows())

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the report (HTML, Markdown, CSV, JSON) and `scores.parquet` into a folder, and return it.

        Raises:
            StorageError: a file cannot be written.
        """
        from reticent._files import atomic_write_bytes
        from reticent.auditing.artifacts import SCORES_NAME, make_audit_folder, write_audit_result
        from reticent.reports.render import write_audit_report

        out = Path(folder)
        make_audit_folder(out)
        atomic_write_bytes(out / SCORES_NAME, self._scores)
        write_audit_result(out, self.result)
        write_audit_report(self.result, out)
        return out


@dataclass(frozen=True)
class _Inputs:
    """Everything of an audit that is read and checked before a model is opened."""

    members: list[str]
    nonmembers: list[str] | None
    owners: "Owners | None"
    canaries: "tuple[Canary, ...]"
    attacks: "tuple[Attack, ...]"
    attacks_named: bool
    settings: dict[str, str | None]


def audit(
    target: Any,
    *,
    members: "str | PathLike[str] | TextRows",
    nonmembers: "str | PathLike[str] | TextRows | None" = None,
    attacks: str | Sequence[str] = "all",
    text_key: str = "text",
    nonmember_text_key: str | None = None,
    unit_key: str | None = None,
    limit: int | None = None,
    out: str | PathLike[str] | None = None,
    tokenizer: Any = None,
    options: AuditOptions | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack a model and report how much it gives away about its training texts.

    Args:
        target: a path, hub id or URL, as for `reticent audit`; a run, with `options.world`; or a `transformers` model,
            PEFT's included.
        members: texts it was trained on; or the whole corpus, where the target lists its members by hash.
        nonmembers: texts it was not trained on.
        attacks: `"all"`, or names of attacks.
        text_key: key or column of the text.
        nonmember_text_key: that of the non-members, where it is another.
        unit_key: key or column that names each text's owner; intervals are then over owners, and attacks are reported
            per owner as well.
        limit: read at most this many records of each.
        out: folder for report, scores and finished passes; the same call resumes there. None keeps nothing on disk.
        tokenizer: of a model that is given as an object.
        options: all other settings.
        progress: sink for progress; silent unless given.

    Raises:
        CorpusError: texts cannot be read.
        AuditError: the sets are empty, overlap or contradict the target's lists, or a named attack cannot run.
        InvalidValueError: a value is out of range.
        EndpointError, ModelError, RunDirectoryError: the target cannot be opened or asked.
        StorageError: something cannot be written.
    """
    from reticent.auditing.artifacts import SCORES_NAME
    from reticent.auditing.attacks.registry import parse_attacks
    from reticent.auditing.canaries.planting import read_canaries
    from reticent.auditing.run import run_audit
    from reticent.reports.render import write_audit_report

    chosen, sink = options or AuditOptions(), progress or SilentProgress()
    names = attacks if isinstance(attacks, str) else ",".join(attacks)
    layout = _layout(target, chosen)
    given = _read(members, text_key, unit_key, limit, layout)
    others = None if nonmembers is None else _read(nonmembers, nonmember_text_key or text_key, unit_key, limit, layout)
    inputs = _Inputs(
        attacks=parse_attacks(names),
        attacks_named=names.strip().lower() != "all",
        members=[record.text for record in given],
        nonmembers=None if others is None else [record.text for record in others],
        owners=None if unit_key is None else _owners([*given, *(others or ())]),
        canaries=read_canaries(Path(chosen.canaries)) if chosen.canaries else (),
        settings={"members": _name(members), "nonmembers": _name(nonmembers)}
        | {"text_key": text_key, "nonmember_text_key": nonmember_text_key, "unit_key": unit_key, "limit": _name(limit)}
        | {name: _name(getattr(chosen, name)) for name in ("canaries", "mlm", "world", "device")},
    )
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reticent-audit-")))
        stack.enter_context(_restore_afterwards(target))
        folder = scratch / "out" if out is None else Path(out)
        cache = Path(chosen.cache or folder / "cache") if chosen.resume else scratch / "cache"
        opened = _open(target, tokenizer, chosen, cache, sink)
        result = run_audit(_make_request(opened, inputs, folder, cache, chosen, sink), sink)
        scores = (folder / SCORES_NAME).read_bytes()
    # The result is on disk before it is rendered.
    if out is not None:
        write_audit_report(result, folder)
    return Audit(result, None if out is None else folder, scores)


def _make_request(
    target: "Target", inputs: _Inputs, out: Path, cache: Path, options: AuditOptions, progress: Progress
) -> "AuditRequest":
    from reticent.auditing.canaries.canary_audit import CanarySettings
    from reticent.auditing.inputs.gathering import GatheringSettings
    from reticent.auditing.run import AuditRequest

    members, nonmembers = inputs.members, inputs.nonmembers
    if nonmembers is None:
        members, nonmembers = _divide_corpus(target, members, inputs.canaries, progress)
    return AuditRequest(
        target=target,
        members=members,
        nonmembers=nonmembers,
        attacks=inputs.attacks,
        attacks_named=inputs.attacks_named,
        out=out,
        gathering=GatheringSettings(
            cache=cache,
            seed=options.seed,
            num_neighbours=options.neighbours,
            num_paraphrases=options.paraphrases,
            num_shots=options.shots,
            num_samples=max(1, options.samples),
            num_places=options.places,
            mlm=options.mlm,
            shadows=options.shadows,
        ),
        seed=options.seed,
        confidence=options.confidence,
        num_resamples=options.bootstrap,
        canaries=inputs.canaries,
        canary_settings=CanarySettings(options.candidates, options.samples, options.seed, options.confidence),
        show_texts=options.show_texts,
        owners=inputs.owners,
        settings=dict(inputs.settings),
    )


def _name(value: object) -> str | None:
    """The value as a report repeats it; of texts that are given as objects, the fact alone."""
    if value is None or isinstance(value, str | int | PathLike):
        return None if value is None else str(value)
    return "given as objects"


def _owners(records: "Sequence[TextRecord]") -> "Owners":
    from reticent.auditing.owners import Owners

    return Owners.of([record.text for record in records], [record.unit for record in records])


def _read(
    texts: "str | PathLike[str] | TextRows",
    text_key: str,
    unit_key: str | None,
    limit: int | None,
    layout: "RecordLayout",
) -> "Sequence[TextRecord]":
    from reticent.text.corpus import read_corpus
    from reticent.text.in_memory import corpus_of_rows

    if isinstance(texts, str | PathLike):
        corpus = read_corpus(Path(texts), text_key=text_key, unit_key=unit_key, limit=limit, layout=layout)
    else:
        corpus = corpus_of_rows(texts, text_key=text_key, unit_key=unit_key, limit=limit, layout=layout)
    return corpus.records


def _layout(target: Any, options: AuditOptions) -> "RecordLayout":
    """The columns that the target's texts are made of, before the target is opened."""
    from reticent.auditing.targets.templates import full_template, stored_template
    from reticent.worlds.manifest import MANIFEST_NAME, read_manifest

    place = target.folder if isinstance(target, Run) else target
    stored = None
    if isinstance(place, str | PathLike):
        folder = Path(place).expanduser()
        is_run = options.world is not None and (folder / MANIFEST_NAME).is_file()
        stored = read_manifest(folder).template if is_run else stored_template(folder)
    return full_template(stored, _target_options(options).template).layout


def _open(target: Any, tokenizer: Any, options: AuditOptions, cache: Path, progress: Progress) -> "Target":
    from reticent.auditing.targets.targets import TargetKind, open_module, open_target, target_kind

    chosen = _target_options(options)
    place = target.folder if isinstance(target, Run) else target
    if not isinstance(place, str | PathLike):
        if options.world is not None:
            raise InvalidValueError("--world names a world of a run directory, and the target is a model in memory")
        return open_module(place, tokenizer, chosen)
    name = str(place)
    if options.world is None:
        return open_target(name, chosen)
    if target_kind(name) is not TargetKind.RUN:
        raise InvalidValueError(f"--world names a world of a run directory, and {name} is none")
    from reticent.api.world_target import open_world

    return open_world(Path(name), options.world, chosen, cache, progress)


def _target_options(options: AuditOptions) -> "TargetOptions":
    from reticent.auditing.targets.endpoint_client import EndpointSettings
    from reticent.auditing.targets.targets import TargetOptions

    template: dict[str, Any] = {
        "text": options.template,
        "encoder_input": options.encoder_input,
        "answer": options.answer_key,
        "max_tokens": options.max_tokens,
        "add_eos": options.eos,
    }
    return TargetOptions(
        model=options.model,
        reference=options.reference,
        template={name: value for name, value in template.items() if value is not None},
        dtype=torch_dtype(options.dtype),
        device=options.device,
        batch_tokens=options.batch_tokens,
        endpoint=EndpointSettings(
            "", api_key_variable=options.api_key_env, timeout_s=options.timeout, num_places=options.places
        ),
    )


@contextmanager
def _restore_afterwards(target: Any) -> Iterator[None]:
    """Restore, at the end of this context, the mode of a model given as an object and what of it is trained.

    Scoring puts it into evaluation mode, and PEFT, which switches adapters off and on again, has them trained after.
    """
    if not hasattr(target, "parameters"):
        yield
        return
    modes = [(part, part.training) for part in target.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in target.parameters()]
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training
        for parameter, was_trained in trained:
            parameter.requires_grad_(was_trained)


def _divide_corpus(
    target: "Target", texts: list[str], planted: "Sequence[Canary]", progress: Progress
) -> tuple[list[str], list[str]]:
    """Divide a corpus by the target's own lists; planted canaries are measured apart."""
    from reticent.auditing.inputs.membership import divide_corpus

    if target.member_hashes is None or target.heldout_hashes is None:
        raise InvalidValueError("this target does not say what it was trained on: give --nonmembers as well")
    canaries = {canary.text for canary in planted}
    own = [text for text in texts if text not in canaries]
    members, nonmembers, neither = divide_corpus(own, target.member_hashes, target.heldout_hashes)
    progress.note(f"{len(members)} members, {len(nonmembers)} non-members by the target's lists; {neither} in neither")
    return members, nonmembers


def _row(attack: "AttackResult") -> dict[str, Any]:
    tpr = attack.tpr_at(0.01)
    return {
        "attack": attack.name,
        "auc": attack.auc.value,
        "auc_low": attack.auc.low,
        "auc_high": attack.auc.high,
        "tpr_at_1_percent_fpr": None if tpr is None else tpr.value,
        "tpr_low": None if tpr is None else tpr.low,
        "tpr_high": None if tpr is None else tpr.high,
        "members": attack.num_members,
        "nonmembers": attack.num_nonmembers,
    }
