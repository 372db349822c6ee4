"""Test texts that the worlds cannot have learnt: read, and compared with the corpus of a run.

A text of the corpus is refused. A near-duplicate of one can be found only if the corpus is given; it is left out and
counted. Only hashes and counts leave this module.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reticent.auditing.inputs.overlap import TextSet, abbreviate_hashes, compare_sets
from reticent.errors import CorpusError
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.fields import PLAIN, RecordLayout
from reticent.text.template import TextTemplate, encode, texts_as_trained
from reticent.worlds.run_directory import RunDirectory

DEFAULT_MAX_TOKENS: Final = 256
"""Tokens of a test text where nobody says how long training texts were."""
NEAR_DUPLICATES_NOT_SOUGHT = (
    "near-duplicates of the corpus among the test texts were not looked for; give the corpus with --corpus"
)


@dataclass(frozen=True)
class TestTexts:
    """Distinct texts outside the corpus.

    Attributes:
        texts, hashes: aligned, in the file's order.
        num_repeats: later copies left out.
        num_near_duplicates: left out as near-duplicates of the corpus; None where it was not given.
        warnings: what could not be checked, or was found.
    """

    __test__ = False  # the name is not a test's

    texts: tuple[str, ...]
    hashes: tuple[str, ...]
    num_repeats: int
    num_near_duplicates: int | None
    warnings: tuple[str, ...]


def reading_template(run: RunDirectory, max_tokens: int | None) -> TextTemplate:
    """The run's own template, with the most tokens of a text that it was trained on and that the test reads."""
    trained = run.manifest.training
    limits = [max_tokens, trained.max_tokens if trained else None]
    most = min((limit for limit in limits if limit), default=DEFAULT_MAX_TOKENS)
    return (run.manifest.template or TextTemplate()).model_copy(update={"max_tokens": most})


def cut_records(tokenizer: Any, template: TextTemplate, records: Sequence[str]) -> list[str]:
    """Texts as a model reads them under a template: cut."""
    return texts_as_trained(tokenizer, template, records, encode(tokenizer, template, records))


def read_test_texts(
    run: RunDirectory,
    path: Path,
    *,
    text_key: str = "text",
    limit: int | None = None,
    layout: RecordLayout = PLAIN,
    corpus: Path | None = None,
    cut: Callable[[Sequence[str]], list[str]] | None = None,
) -> TestTexts:
    """Read test texts and compare them with the corpus of a run.

    Args:
        run: the run.
        path: the test texts, as `corpus.read_corpus` reads them.
        text_key: key or column of the text, here and in the corpus.
        limit: the most texts to read.
        layout: the columns of a record, here and in the corpus.
        corpus: the run's own corpus, to look for near-duplicates.
        cut: cuts texts as the models read them; near-duplicates are looked for among these as well.

    Raises:
        CorpusError: a file cannot be read, a test text is in the corpus, or `corpus` is not the run's.
    """
    found = read_corpus(path, text_key=text_key, limit=limit, layout=layout)
    texts = TextSet.of("test texts", [record.text for record in found.records])
    warnings = []
    trained_on = run.text_hashes()
    if trained_on is None:
        warnings.append("the run does not say which texts it was built on, so nobody can say that the test is apart")
    elif shared := [value for value in texts.hashes if value in trained_on]:
        raise CorpusError(
            f"{len(shared)} of {len(texts.hashes)} test texts are in the corpus of {run.folder}: SHA-256 "
            f"{abbreviate_hashes(shared)}; test on texts that no world has seen"
        )
    if corpus is None:
        warnings.append(NEAR_DUPLICATES_NOT_SOUGHT)
        return TestTexts(texts.texts, texts.hashes, texts.num_repeats, None, tuple(warnings))
    records = [record.text for record in read_corpus(corpus, text_key=text_key, layout=layout).records]
    near = _near_duplicates(run, texts, corpus, records, trained_on, cut)
    kept = [(text, value) for text, value in zip(texts.texts, texts.hashes, strict=True) if value not in near]
    if near:
        warnings.append(f"{len(near)} test texts nearly repeat texts of the corpus and were left out")
    if not kept:
        raise CorpusError(f"{path}: every test text nearly repeats one of the corpus; test on others")
    kept_texts, kept_hashes = zip(*kept, strict=True)
    return TestTexts(kept_texts, kept_hashes, texts.num_repeats, len(near), tuple(warnings))


def _near_duplicates(
    run: RunDirectory,
    texts: TextSet,
    corpus: Path,
    records: list[str],
    trained_on: frozenset[str] | None,
    cut: Callable[[Sequence[str]], list[str]] | None,
) -> frozenset[str]:
    if trained_on is not None:
        records = [text for text in records if text_hash(text) in trained_on]
        if len(set(records)) < len(trained_on):
            raise CorpusError(
                f"{corpus} holds {len(set(records))} of the {len(trained_on)} texts that {run.folder} was built on; "
                "give the corpus of this run"
            )
    trained = TextSet.of("corpus", records)
    read_texts = None if cut is None else cut([*trained.texts, *texts.texts])
    found = compare_sets(trained, texts, read_texts=read_texts)
    return frozenset(pair.nonmember_hash for pair in found.near_duplicates)
