"""What the target writes of its own, against a loop without caches, and the reference adapted to it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounding import clear_largest
from scoring_oracle import begin_tokenizer
from tiny_models import EOS, build_tiny_model, byte_tokenizer, save_tiny_model

from reticent.auditing.inputs import self_prompted
from reticent.auditing.inputs.self_prompted import SelfPrompting, self_prompted_reference, self_prompted_texts
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import AuditError
from reticent.text.fields import join_fields
from reticent.text.template import TextTemplate, encode
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, attach_demonstrations, technique_parameters

BEGINNINGS = ("the first of some beginnings", "a second", "short", "one more that is long enough")
PROMPTING = SelfPrompting(num_texts=5, prompt_tokens=6, max_tokens=20, seed=3)
SETTINGS = TechniqueSettings(rank=3, prefix_tokens=4, prompt_tokens=2)


class Silence:
    def __init__(self) -> None:
        self.done = 0

    def note(self, line: str) -> None:
        pass

    def begin(self, what: str, num_tokens: int) -> None:
        self.total = num_tokens

    def advance(self, num_tokens: int) -> None:
        self.done += num_tokens


def target(technique: Technique | None, family: str = "llama", tokenizer: Any = None) -> tuple[Any, ModelScorer]:
    module: Any = build_tiny_model(family)
    tokenizer = tokenizer or byte_tokenizer()
    template = TextTemplate(max_tokens=40)
    if technique is Technique.ICL:
        shots = encode(tokenizer, template, ["shown", "before"])
        module = attach_demonstrations(module, [shot.token_ids for shot in shots], tokenizer.bos_token_id)
    elif technique is not None:
        module = attach(module, technique, SETTINGS)
        with torch.no_grad():
            for parameter in technique_parameters(module):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return module, ModelScorer(
        module, tokenizer or byte_tokenizer(), TextTemplate(max_tokens=40), f"{technique}{family}"
    )


def assert_as_naive(written: str, module: Any, scorer: ModelScorer, beginning: str, number: int) -> bool:
    """A text is what the naive loop writes, or begins so up to a choice rounding decides; whether it has none."""
    expected, whole = naive_text(module, scorer, beginning, number)
    if whole:
        assert written == expected
    else:
        assert written.startswith(expected.rstrip("\ufffd"))
    return whole


def naive_text(module: Any, scorer: ModelScorer, beginning: str, number: int) -> tuple[str, bool]:
    """The same draws from whole forward passes without a cache, up to the first that rounding decides; whether none."""
    (prompt,) = scorer.encode([beginning])
    ids = prompt.token_ids[: PROMPTING.prompt_tokens].tolist()
    generator = np.random.default_rng([PROMPTING.seed, number])
    while len(ids) < PROMPTING.max_tokens and ids[-1] != EOS:
        with torch.no_grad():
            if prompt.input_ids is None:
                tokens = torch.tensor([ids])
                logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, -1]
            else:
                source = torch.from_numpy(prompt.input_ids)[None]
                logits = module(input_ids=source, labels=torch.tensor([[*ids, 0]])).logits[0, -1]
        best = clear_largest(logits.numpy(), 50)
        noise = -np.log(-np.log(1.0 - _uniforms(generator, 50)))
        first = best and clear_largest(logits[best].numpy() + noise)
        if not first:
            return scorer.tokenizer.decode(ids, skip_special_tokens=True), False
        ids.append(best[first[0]])
    return scorer.tokenizer.decode(ids, skip_special_tokens=True), True


def _uniforms(generator: np.random.Generator, count: int) -> np.ndarray:
    """The uniforms behind NumPy's Gumbel draws: −log(−log(1 − u))."""
    return np.array([1.0 - math.exp(-math.exp(-x)) for x in generator.gumbel(size=count)])


@pytest.mark.parametrize(
    ("technique", "family"),
    [
        (None, "gpt2"),
        (Technique.LORA, "llama"),
        (Technique.PROMPT, "llama"),
        (Technique.PREFIX, "llama"),
        (Technique.ICL, "llama"),
        (Technique.LORA, "t5"),
    ],
)
def test_the_target_writes_what_it_would_without_a_cache(technique: Any, family: str, tmp_path: Path) -> None:
    module, scorer = target(technique, family)
    progress = Silence()
    found = self_prompted_texts(scorer, BEGINNINGS, PROMPTING, TextStore(tmp_path / "w.jsonl"), progress)
    long_enough = [text for text in BEGINNINGS if len(text) + 1 > PROMPTING.prompt_tokens]
    beginnings = [long_enough[i % len(long_enough)] for i in range(PROMPTING.num_texts)]
    assert len(found) == len(beginnings)
    num_whole = 0
    for number, (written, beginning) in enumerate(zip(found, beginnings, strict=True)):
        num_whole += assert_as_naive(written, module, scorer, beginning, number)
    assert num_whole >= len(found) // 2
    assert all(text.startswith(long_enough[i % len(long_enough)][:6]) for i, text in enumerate(found))
    assert progress.done == progress.total


def test_a_beginning_of_text_token_stands_once(tmp_path: Path) -> None:
    module, scorer = target(Technique.ICL, tokenizer=begin_tokenizer())
    found = self_prompted_texts(scorer, BEGINNINGS[:1], PROMPTING, TextStore(tmp_path / "w.jsonl"), Silence())
    assert_as_naive(found[0], module, scorer, BEGINNINGS[0], 0)


def test_what_was_written_before_a_kill_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_prompted, "_ROWS_AT_ONCE", 2)
    _, scorer = target(None)
    whole = self_prompted_texts(scorer, BEGINNINGS, PROMPTING, TextStore(tmp_path / "whole.jsonl"), Silence())
    calls = 0
    genuine = ModelScorer.continuations

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return genuine(*arguments)

    monkeypatch.setattr(ModelScorer, "continuations", interrupted)
    store = TextStore(tmp_path / "killed.jsonl")
    with pytest.raises(KeyboardInterrupt):
        self_prompted_texts(scorer, BEGINNINGS, PROMPTING, store, Silence())
    assert len(store.read()) == 2
    assert self_prompted_texts(scorer, BEGINNINGS, PROMPTING, store, Silence()) == whole
    assert calls == 4, "one batch before the kill, the killed one, and two after it"


def test_beginnings_that_are_too_short_are_refused(tmp_path: Path) -> None:
    _, scorer = target(None)
    with pytest.raises(AuditError, match="6 tokens"):
        self_prompted_texts(scorer, ["short"], PROMPTING, TextStore(tmp_path / "w.jsonl"), Silence())


def test_the_reference_is_adapted_to_what_the_target_wrote(tmp_path: Path) -> None:
    """It likes the target's own texts better than the base does, and a second call trains nothing."""
    base = tmp_path / "base"
    save_tiny_model(base, "llama")
    _, scorer = target(Technique.LORA)
    prompting = SelfPrompting(
        num_texts=8, prompt_tokens=6, max_tokens=30, settings=TechniqueSettings(rank=4), epochs=20, learning_rate=1e-2
    )
    adapted = self_prompted_reference(scorer, str(base), BEGINNINGS, prompting, tmp_path / "cache", Silence())
    (store,) = (tmp_path / "cache").rglob("written.jsonl")
    texts = list(TextStore(store).read().values())
    assert len(adapted.member_hashes) == len(set(texts))
    module, tokenizer = adapted.load()
    reference = ModelScorer(module, tokenizer, adapted.template, "reference")
    before = ModelScorer(module, tokenizer, adapted.template, "base", with_adapter=False)
    means = [np.mean([s.logp.mean() for s in one.score(texts) if s]) for one in (reference, before)]
    assert means[0] > means[1] + 0.05
    written_at = (adapted.folder / "adapt.json").stat().st_mtime_ns
    again = self_prompted_reference(scorer, str(base), BEGINNINGS, prompting, tmp_path / "cache", Silence())
    assert again.folder == adapted.folder
    assert (adapted.folder / "adapt.json").stat().st_mtime_ns == written_at
    private = [path for path in (tmp_path / "cache").rglob("*.jsonl") if path.stat().st_mode & 0o077]
    assert not private, "texts are readable by their owner alone"


def test_a_reference_of_an_encoder_decoder_reads_what_the_target_read_of_each_record(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "base", "t5", layers=2)
    template = TextTemplate(text="A: {answer}", encoder_input="Q: {question}", answer="answer", max_tokens=40)
    scorer = ModelScorer(build_tiny_model("t5", layers=2), byte_tokenizer(), template, "t5")
    pairs = [("why is it", "because of the first"), ("how", "in the second of ways")]
    records = [join_fields([("answer", answer), ("question", question)]) for question, answer in pairs]
    base = str(tmp_path / "base")
    adapted = self_prompted_reference(scorer, base, records, PROMPTING, tmp_path, Silence())
    assert (adapted.template.text, adapted.template.encoder_input) == ("{text}", "{input}")
    rows = [json.loads(line) for path in tmp_path.rglob("corpus.jsonl") for line in path.read_text().splitlines()]
    assert {row["input"] for row in rows} == {"Q: why is it", "Q: how"}
    assert all(row["text"].startswith("A: ") for row in rows)
