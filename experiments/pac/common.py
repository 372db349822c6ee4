"""Parts that all scripts share: the command line, the texts, one run directory and its votes, and results.

Everything costly is made once under `--work` and taken from there by every later script of the same size and domain:

    WORK/SIZE/DOMAIN/texts/     the texts that were drawn
    WORK/SIZE/DOMAIN/corpora/   parts of them as corpus files
    WORK/SIZE/DOMAIN/runs/      run directories, named by what they are and a hash of their settings
    WORK/SIZE/DOMAIN/votes/     votes, named alike

Interrupted work resumes where it stopped when the same command is given again. Results go to `--out`:
NAME-DOMAIN.json, .md and .svg.
"""

import argparse
import hashlib
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from experiments.pac.operating_point import OperatingPoint, read_operating_point
from experiments.pac.results import Findings, ResultHeader, write_file, write_findings
from experiments.pac.settings import SETTINGS, TINY, Domain, Settings, Size
from experiments.pac.sources import makers
from experiments.pac.surface_form import wikitext_form
from reticent._files import json_lines, sha256_of_file
from reticent.benchmark.data import prepare_data
from reticent.benchmark.records import settings_hash
from reticent.benchmark.tiny_models import tiny_model
from reticent.cli.progress import WorkProgress
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError, ReticentError
from reticent.evaluation.vote_casting import CastingRequest, VoteSettings, cast_vote_tensor
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.layers.forward import BatchedDecoder, batched_decoder
from reticent.models.base import LanguageModel, resolve_base_model
from reticent.protocols import Progress
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.tokenise import encode_texts
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.build import BuildRequest, build_run
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME
from reticent.worlds.run_directory import RunDirectory

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_MEMBERSHIP_SEED = 0


@dataclass(frozen=True)
class DomainTexts:
    """The texts of one domain, in parts that have no text and no near-duplicate in common.

    Attributes:
        corpus: what worlds are trained on.
        validation: for every choice that is made; test: for what is reported.
        spare: for experiments that need more texts no world has seen.
    """

    corpus: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    spare: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """One script's setting, and what it shares with the others.

    Attributes:
        name: as in the names of its files.
        settings: of its size.
        domain: of its texts.
        data, work, out: folders.
        command: how to repeat it.
        progress: where long work reports.
    """

    name: str
    settings: Settings
    domain: Domain
    data: Path
    work: Path
    out: Path
    command: str
    progress: Progress
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of this size and domain for what scripts share."""
        return self.work / self.settings.size.value / self.domain.value

    @cached_property
    def operating_point(self) -> OperatingPoint:
        """The learning rate, epochs, rank and layers that the sweep chose, or else those of the size."""
        default = OperatingPoint.of(self.settings.lora, self.settings.training)
        return read_operating_point(self.out, self.settings.size) or default

    @cached_property
    def lora(self) -> LoraSettings:
        """The shared run's adapters."""
        return self.operating_point.lora(self.settings.lora)

    @cached_property
    def training(self) -> TrainingSettings:
        """The shared run's training."""
        return self.operating_point.training(self.settings.training)

    @property
    def dtype(self) -> torch.dtype:
        """The type of every forward pass."""
        dtype: torch.dtype = getattr(torch, self.settings.training.dtype)
        return dtype

    @cached_property
    def base(self) -> LanguageModel:
        """The public model."""
        if self.settings.model == TINY:
            return resolve_base_model(str(tiny_model("llama", self.work / "models" / "tiny-llama")))
        return resolve_base_model(self.settings.model)

    @cached_property
    def tokenizer(self) -> Any:
        """The public model's tokenizer."""
        return self.base.load_tokenizer()

    @cached_property
    def decoder(self) -> BatchedDecoder:
        """The public model as the ensemble runs it."""
        return batched_decoder(self.base.load(self.dtype))

    @cached_property
    def texts(self) -> DomainTexts:
        """All texts, drawn once; those in another surface form are the same texts."""
        counts = self.settings.counts
        if self.domain not in self.settings.sources:
            known = ", ".join(domain.value for domain in self.settings.sources)
            raise InvalidValueError(
                f"the size {self.settings.size.value} has the domains {known}, not {self.domain.value}"
            )
        sizes = (counts.corpus, counts.validation, counts.test, counts.spare)
        prepared = prepare_data(
            self.settings.sources[self.domain], sum(sizes), self.folder / "texts", self.data, makers(self.data)
        )
        texts = [record.text for record in read_corpus(prepared.corpus).records]
        drawn = map(wikitext_form, texts) if self.domain is Domain.WIKITEXT_FORM else iter(texts)
        return DomainTexts(*(tuple(next(drawn) for _ in range(size)) for size in sizes))

    @property
    def records(self) -> tuple[str, ...]:
        """The texts that the shared run, and whatever is put beside it, is trained on."""
        return self.texts.corpus[: self.settings.num_records]

    @cached_property
    def run(self) -> RunDirectory:
        """Overlapping worlds on the records, m of them, and one adapter on all records."""
        return self.build("run", self.records, self.settings.num_worlds, self.lora, self.training)

    @cached_property
    def votes(self) -> VoteTensor:
        """The votes of `run` at every position of the test texts."""
        return self.cast("test", self.run, self.texts.test)

    def corpus_file(self, name: str, texts: Sequence[str]) -> Path:
        """A corpus file of some texts, for whatever reads files; named by its content."""
        lines = json_lines({"text": text} for text in texts)
        path = self.folder / "corpora" / f"{name}-{hashlib.sha256(lines).hexdigest()[:12]}.jsonl"
        if not path.is_file():
            write_file(path, lines)
        return path

    def build(
        self,
        name: str,
        texts: Sequence[str],
        num_worlds: int,
        lora: LoraSettings,
        training: TrainingSettings,
        assignment: Assignment = Assignment.OVERLAPPING,
    ) -> RunDirectory:
        """Worlds on some texts, built, resumed or found; overlapping unless another assignment is given."""
        corpus = self.corpus_file(name, texts)
        identity = {
            "corpus": sha256_of_file(corpus),
            "base": self.base.content_hash,
            "num_worlds": num_worlds,
            "lora": lora.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
            "assignment": assignment.value,
        }
        request = BuildRequest(
            corpus=corpus,
            model=str(self.base.folder) if self.settings.model == TINY else self.settings.model,
            out=self.folder / "runs" / f"{name}-{settings_hash(identity)[:12]}",
            num_worlds=num_worlds,
            lora=lora,
            training=training,
            membership_seed=_MEMBERSHIP_SEED,
            assignment=assignment,
        )
        return build_run(request, self.progress, resume=True)

    def forcing(self, run: RunDirectory) -> TeacherForcing:
        """Reads whole texts with the worlds of a run."""
        return TeacherForcing(self.decoder, run.worlds(), run.full() if FULL_NAME in run.manifest.files else None)

    def tokens(self, texts: Sequence[str], max_tokens: int | None = None) -> list[list[int]]:
        """The token ids of texts, cut as in training unless another limit is given."""
        encoded = encode_texts(self.tokenizer, texts, max_tokens or self.settings.training.max_tokens)
        starts = encoded.offsets
        return [encoded.tokens[start:stop].tolist() for start, stop in pairwise(starts)]

    def cast(
        self,
        name: str,
        run: RunDirectory,
        texts: Sequence[str],
        max_tokens: int | None = None,
        votes: VoteSettings | None = None,
    ) -> VoteTensor:
        """The votes of a run at every position of some texts, cast, resumed or found."""
        votes = votes or self.settings.votes
        identity = {
            "run": sha256_of_file(run.folder / MANIFEST_NAME),
            "dtype": str(self.dtype).removeprefix("torch."),
            "max_tokens": max_tokens or self.settings.training.max_tokens,
        }
        hashes = [text_hash(text) for text in texts]
        named = settings_hash({**identity, "texts": hashes, "votes": votes.model_dump(mode="json")})[:12]
        folder = self.folder / "votes" / f"{name}-{named}"
        request = CastingRequest(self.tokens(texts, max_tokens), hashes, identity, folder)
        return cast_vote_tensor(self.forcing(run), request, votes, self.progress, resume=True)

    def header(self) -> ResultHeader:
        """The header of a result."""
        return ResultHeader.now(
            name=self.name,
            command=self.command,
            size=self.settings.size.value,
            domain=self.domain.value,
            seed=self.settings.seed,
            model=self.settings.model,
            operating_point=self.operating_point.model_dump(mode="json"),
            counts=asdict(self.settings.counts),
            num_records=self.settings.num_records,
            num_worlds=self.settings.num_worlds,
            max_tokens=self.settings.training.max_tokens,
        )


Measure = Callable[[Experiment], Findings]
"""A script: measures, and says what it found. `run_script` writes that down."""


def run_script(name: str, description: str, measure: Measure, arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, and write the result; returns an exit code.

    Args:
        name: of the script's module and of its files.
        description: for `--help`.
        measure: does the work.
        arguments: the command line; the process's own unless given.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(name, description).parse_args(arguments)
    with WorkProgress() as progress:
        experiment = experiment_of(
            name, options, shlex.join(["python", "-m", f"experiments.pac.{name}", *arguments]), progress
        )
        try:
            findings = measure(experiment)
            written = write_findings(experiment.out, experiment.header(), findings)
        except ReticentError as error:
            progress.note(f"error: {error}")
            return 2
        for path in written:
            progress.note(f"wrote {path}")
    return 0


def experiment_of(name: str, options: argparse.Namespace, command: str, progress: Progress) -> Experiment:
    """The experiment of parsed options."""
    size = Size(options.size)
    out = options.out or (HERE if size is Size.LOCAL else options.work / size.value / "results")
    settings = replace(SETTINGS[size], seed=options.seed)
    return Experiment(name, settings, Domain(options.domain), options.data, options.work, out, command, progress)


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"python -m experiments.pac.{name}", description=description)
    add: Callable[..., Any] = parser.add_argument
    add("--size", choices=[size.value for size in Size], default=Size.LOCAL.value, help="default: %(default)s")
    add(
        "--domain",
        choices=[domain.value for domain in Domain],
        default=Domain.WIKIPEDIA.value,
        help="default: %(default)s",
    )
    add("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the private texts")
    add(
        "--work",
        type=Path,
        default=ROOT / "build" / "experiments",
        help="folder of what scripts share (default: %(default)s)",
    )
    add("--out", type=Path, help="where results go; experiments/pac for the local size, else below --work")
    add("--seed", type=int, default=0, help="of secrets, noise and draws (default: %(default)s)")
    return parser
