"""The parts that all rows share: sizes, the base model, the machine's peaks, random adapters."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from reticent.errors import InvalidValueError
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import BatchedDecoder, batched_decoder
from reticent.models.architecture import Architecture
from reticent.models.base import LanguageModel, resolve_base_model
from reticent.models.compiled import can_compile
from reticent.text.corpus import read_corpus
from reticent.text.template import EncodedText, TextTemplate, encode

_LAYERS_OF_REFERENCE = 30
_DISTINCT = 0.03
"""Standard deviation of B's entries at which worlds differ by more than bfloat16's rounding."""
ALIKE = 0.01
"""One with which they mostly agree on the next token, as trained worlds do."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements. The defaults are what the targets are stated for."""

    num_worlds: int = 128
    num_candidates: int = 200
    rank: int = 8
    context: int = 32
    prefill: int = 256
    memory_context: int = 512
    pairs: int = 15
    heavy_pairs: int = 5
    stream_tokens: int = 56
    prefills_timed: int = 6
    releases_a_pair: int = 200
    batch: int = 8
    text_tokens: int = 64
    requests: int = 8
    answer_tokens: int = 48
    audit_texts: int = 64
    audit_timed: int = 16
    audit_tokens: int = 128
    audit_pairs: int = 3
    curve_worlds: tuple[int, ...] = (8, 32, 128)
    curve_requests: tuple[int, ...] = (1, 2, 4, 8)
    curve_contexts: tuple[int, ...] = (32, 256, 1024)
    curve_steps: int = 15


SMOKE = Sizes(
    num_worlds=8,
    num_candidates=20,
    rank=4,
    context=16,
    prefill=24,
    memory_context=32,
    pairs=3,
    heavy_pairs=2,
    stream_tokens=8,
    prefills_timed=2,
    releases_a_pair=20,
    batch=4,
    text_tokens=16,
    requests=4,
    answer_tokens=6,
    audit_texts=8,
    audit_timed=4,
    audit_tokens=12,
    audit_pairs=2,
    curve_worlds=(2, 4),
    curve_requests=(1, 2),
    curve_contexts=(8, 16),
    curve_steps=2,
)
"""Seconds instead of many minutes: shows that every row runs, and nothing about speed."""


@dataclass
class Workspace:
    """The setting of one run of the benchmark; what is costly is made on first use."""

    model_name: str
    dtype: torch.dtype
    device: torch.device
    sizes: Sizes
    scratch: Path
    smoke: bool = False
    texts: Path | None = None
    """A corpus for the rows on auditing; texts sampled from the base without one."""
    seed: int = 0
    kept: dict[str, Any] = field(default_factory=dict)
    """What rows leave for one another, such as PEFT with all adapters loaded."""

    @cached_property
    def base(self) -> LanguageModel:
        """The base model on disk."""
        return resolve_base_model(self.model_name)

    @cached_property
    def model(self) -> Any:
        """The base as `transformers` runs it: the peer, and the reference."""
        return self.base.load(self.dtype).to(self.device)

    @cached_property
    def fuse(self) -> bool:
        """True if training compiles its element-wise work, as a long build does."""
        return not self.smoke and self.device.type == "cpu" and can_compile()

    @cached_property
    def exact_model(self) -> Any:
        """The base in float32: what rounding is measured against."""
        return self.model if self.dtype == torch.float32 else self.base.load(torch.float32).to(self.device)

    @cached_property
    def decoder(self) -> BatchedDecoder:
        """The base as Reticent runs it."""
        return batched_decoder(self.model)

    def forget_peers(self) -> None:
        """Release models that later measurements do not need, where these need the memory."""
        self.kept.clear()
        self.__dict__.pop("exact_model", None)

    @property
    def architecture(self) -> Architecture:
        """The parts of the base."""
        return self.decoder.architecture

    @cached_property
    def peaks(self) -> machine.Machine:
        """The machine's own peaks, in this run."""
        return machine.measure(self.dtype, self.device, self.sizes.num_worlds + 1, quick=self.smoke)

    def top(self, count: int) -> int:
        """Number of adapted blocks: of 30, or the same share of another base's."""
        return max(1, count * len(self.architecture.layers) // _LAYERS_OF_REFERENCE)

    def adapters(
        self, names: str, top: int | None = None, num_worlds: int | None = None, deviation: float = _DISTINCT
    ) -> StackedAdapters:
        """Random adapters, the same for the same arguments."""
        generator = torch.Generator().manual_seed(self.seed)
        count, rank = num_worlds or self.sizes.num_worlds, self.sizes.rank
        down, up = {}, {}
        for module in select_modules(self.architecture, [names], None if top is None else self.top(top)):
            a = torch.randn(count, rank, module.in_features, generator=generator) * module.in_features**-0.5
            b = torch.randn(count, module.out_features, rank, generator=generator) * deviation
            down[module.path], up[module.path] = a.to(self.device, self.dtype), b.to(self.device, self.dtype)
        return StackedAdapters(down, up, alpha=2.0 * rank)

    def prompt(self, length: int, number: int = 0) -> list[int]:
        """Random tokens, the same for the same arguments."""
        generator = torch.Generator().manual_seed(1000 + number)
        tokens: list[int] = torch.randint(self.architecture.vocab_size, (length,), generator=generator).tolist()
        return tokens

    def corpus_texts(self) -> list[EncodedText]:
        """The texts of the corpus that was named for the rows on auditing, those of the full length that is scored.

        Raises:
            InvalidValueError: too few of its texts are so long.
            CorpusError: it cannot be read.
        """
        assert self.texts is not None
        template, wanted = self.audit_template, self.sizes.audit_texts
        texts = [record.text for record in read_corpus(self.texts).records]
        encoded = encode(self.base.load_tokenizer(), template, texts)
        whole = [text for text in encoded if len(text.token_ids) == template.max_tokens]
        if len(whole) < wanted:
            raise InvalidValueError(
                f"--texts {self.texts}: {len(whole)} texts of at least {template.max_tokens} tokens, needed are "
                f"{wanted}; name a corpus with longer or more texts, or leave --texts away"
            )
        return whole[:wanted]

    @property
    def audit_template(self) -> TextTemplate:
        """The template of the texts in the rows on auditing."""
        return TextTemplate(max_tokens=self.sizes.audit_tokens + 1, add_eos=False)

    def sample_texts(self, count: int, length: int) -> torch.Tensor:
        """Texts that the base itself says, [count, length]; the same for the same arguments.

        Where gradients are compared: those of some random tokens are so ill-conditioned that rounding to half
        precision moves their norms severalfold.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            first = torch.randint(self.architecture.vocab_size, (count, 1))
            texts: torch.Tensor = self.model.generate(
                first,
                attention_mask=torch.ones_like(first),
                do_sample=True,
                top_k=0,
                min_new_tokens=length - 1,
                max_new_tokens=length - 1,
                pad_token_id=0,
            )
        return texts
