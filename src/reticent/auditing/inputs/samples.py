"""Texts that a server writes after the first half of each text, for SaMIA."""

import re
from collections.abc import Mapping, Sequence

from reticent.auditing.attacks.evidence import Missing, SampledEvidence
from reticent.auditing.targets.continuations import Continuer, Prompt
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate

_TOO_SHORT = "the text has no two words, so that it has no half to continue"
_WORD = re.compile(r"\S+")
_BYTES_A_TOKEN = 3
"""Fewer than a token has in most languages' texts, so that an answer has room for the whole rest."""


def sampled_continuations(
    continuer: Continuer, template: TextTemplate, texts: Sequence[str], num_samples: int, seed: int
) -> dict[str, SampledEvidence | Missing]:
    """Samples after the first half of each text, by the text's hash.

    Args:
        continuer: asks the server.
        template: what stands before a text, or before a record's answer; of longer ones the first `max_tokens / 2`
            words are looked at, which any tokenizer lets a model read.
        texts: the texts, asked about in this order.
        num_samples: answers for each text.
        seed: of the samples.

    Raises:
        StorageError: an answer cannot be kept.
    """
    halves = {text: _halves_of_record(text, template) for text in texts}
    prompts: dict[str, Prompt] = {}
    for text, half in halves.items():
        if half is not None:
            longest = min(template.max_tokens, -(-len(half[1].encode()) // _BYTES_A_TOKEN) + 1)
            prompts[text] = Prompt(half[0], longest, num_samples, seed)
    answers: Mapping[str, tuple[str, ...] | None] = dict(
        zip(prompts, continuer.continue_all(list(prompts.values())), strict=True)
    )
    found: dict[str, SampledEvidence | Missing] = {}
    for text, half in halves.items():
        samples = answers.get(text)
        if half is None:
            found[text_hash(text)] = Missing(_TOO_SHORT)
        elif samples is None:
            found[text_hash(text)] = Missing(continuer.failures.get(prompts[text].key, "the server did not answer"))
        else:
            found[text_hash(text)] = SampledEvidence(half[1], samples)
    return found


def _halves_of_record(record: str, template: TextTemplate) -> tuple[str, str] | None:
    """The rendered record up to the middle of its main column's value, and the rest of that value."""
    text, (start, stop) = template.render(record), template.main_span(record)
    halves = halves_of(text[start:stop], template.max_tokens // 2)
    return None if halves is None else (text[:start] + halves[0], halves[1])


def halves_of(text: str, most_words: int) -> tuple[str, str] | None:
    """The first half of a text's first words, without white space after it, and the second; None below two words."""
    words = list(_WORD.finditer(text))[:most_words]
    if len(words) < 2:
        return None
    middle = words[(len(words) + 1) // 2 - 1].end()
    return text[:middle], text[middle : words[-1].end()]
