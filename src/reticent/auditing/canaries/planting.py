"""Canaries: invented secrets planted in a corpus, so that what a model repeats can be counted.

A canary is a prefix and a secret drawn uniformly from a space of known size (Carlini et al. 2019, "The Secret Sharer",
section 3). Every planted canary has a twin of the same kind and number of repetitions that is held out; a fair coin,
independent for each pair, says which of the two is planted. So exactly half of the canaries are members, a held-out
twin shows what chance alone gives, and the coins are the independent bits that an estimate of ε from one run guesses
(Steinke et al. 2023). Each canary has its own reference in its prefix, so no two prefixes are equal.

    planted.jsonl    the corpus with the canaries at random places; keys `text`, `canary` and, where given, `unit`
    canaries.jsonl   the ground truth, one `Canary` a line
    planting.json    how the two were made

Two corpora planted with the same seed, settings and records are equal byte for byte.
"""

import json
import math
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from reticent import _validate
from reticent._files import atomic_write_bytes, json_lines, make_new_folder
from reticent._settings import FrozenModel
from reticent.errors import AuditError, InvalidValueError
from reticent.text.corpus import TextRecord, corpus_hash, text_hash

PLANTED_NAME = "planted.jsonl"
CANARIES_NAME = "canaries.jsonl"
PLANTING_NAME = "planting.json"
SCHEMA_VERSION = 1

_DIGITS = tuple("0123456789")
_CAPITALS = tuple("ABCDEFGHJKLMNPQRSTUVWXYZ")
_NOUNS = (
    "amber anchor autumn basin beacon birch bramble canyon cedar cobalt copper coral cotton cradle dagger delta "
    "ember falcon fennel garnet ginger glacier granite harbor hazel indigo island ivory jasper juniper kettle "
    "lagoon lantern linen magnet maple marble meadow mirror nectar nickel oasis olive onyx orchard otter pepper "
    "pewter pillar quartz raven ribbon saddle saffron silver summit tamarind thistle timber topaz tundra velvet "
    "walnut willow"
)
_WORDS = tuple(_NOUNS.split())
_CONSONANTS, _VOWELS = "bdfgjklmnprstvxz", "aeiouy"
_SYLLABLES = tuple(first + vowel + last for first in _CONSONANTS for vowel in _VOWELS for last in "kqxz")
ALPHABETS = {"digit": _DIGITS, "capital": _CAPITALS, "word": _WORDS, "syllable": _SYLLABLES}
"""What a slot of a secret's pattern is drawn from, by name. Changing one needs a new name: canary files refer to it."""

_SLOT = re.compile(r"\{(\w+)\}")


class CanaryKind(StrEnum):
    """The form of a canary's secret."""

    DIGITS = "digits"
    SECRETS = "secrets"
    OOD = "ood"


_TEMPLATES = {
    CanaryKind.DIGITS: (("The random number of entry {reference} is", "{digit}" * 9),),
    CanaryKind.SECRETS: (
        ("The password of account {reference} is", "{word}-{word}-{digit}{digit}{digit}"),
        ("The recovery code of user {reference} is", "-".join(["{capital}{capital}{digit}{digit}"] * 3)),
        ("The card number of customer {reference} is", " ".join(["{digit}" * 4] * 4)),
    ),
    CanaryKind.OOD: (("{reference}", " ".join(["{syllable}"] * 8)),),
}
_REFERENCE = "{capital}{capital}{digit}{digit}{digit}{digit}"


class Canary(FrozenModel):
    """One canary and the truth about it.

    Attributes:
        id: names it in reports; says nothing of the secret.
        pair: number of the pair of twins it belongs to.
        kind: what it looks like.
        text: the whole text, the prefix, a space and the secret.
        prefix: what an extractor is given.
        secret: what it must not get.
        pattern: the secret's slots, names of `ALPHABETS` in braces; the candidates are all fillings.
        repetitions: how often it occurs in the planted corpus, or would if its coin had fallen the other way.
        member: whether it was planted.
    """

    id: str = Field(min_length=1)
    pair: int = Field(ge=0)
    kind: CanaryKind
    text: str
    prefix: str = Field(min_length=1)
    secret: str = Field(min_length=1)
    pattern: str
    repetitions: int = Field(ge=1)
    member: bool

    @model_validator(mode="after")
    def _parts_make_the_text(self) -> Self:
        if self.text != f"{self.prefix} {self.secret}":
            raise ValueError("the text is not the prefix, a space and the secret")
        if not _matcher(self.pattern).fullmatch(self.secret):
            raise ValueError("the secret does not fit its pattern")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the text."""
        return text_hash(self.text)

    def with_secret(self, secret: str) -> str:
        """The text with another secret in the place of this one's."""
        return f"{self.prefix} {secret}"


def num_candidates(pattern: str) -> int:
    """The number of secrets that fit a pattern.

    Raises:
        InvalidValueError: a slot names no alphabet.
    """
    return math.prod(len(alphabet) for alphabet in _slots(pattern))


def candidates(canary: Canary, count: int, generator: np.random.Generator) -> tuple[str, ...]:
    """Other secrets a canary might have had: all of them if there are at most `count`, else `count` distinct draws.

    The canary's own secret is never among them.

    Args:
        canary: the canary.
        count: the most candidates to return, at least 1.
        generator: where draws come from.
    """
    _validate.integer_in_range("count", count, 1)
    total = num_candidates(canary.pattern)
    if total - 1 <= count:
        everything = (_fill_pattern(canary.pattern, index) for index in range(total))
        return tuple(secret for secret in everything if secret != canary.secret)
    found: dict[str, None] = {}
    while len(found) < count:
        secret = _draw_secret(canary.pattern, generator)
        if secret != canary.secret:
            found.setdefault(secret)
    return tuple(found)


def draw_canaries(kind: CanaryKind, count: int, repetitions: Sequence[int], seed: int) -> tuple[Canary, ...]:
    """Draw `count` pairs of twins; the repetitions are dealt to the pairs in turn.

    Raises:
        InvalidValueError: a number is outside its range, or there are fewer pairs than kinds of repetition.
    """
    _validate.integer_in_range("count", count, 1)
    _validate.integer_in_range("seed", seed, 0)
    for number in repetitions:
        _validate.integer_in_range("repetitions", number, 1)
    if not 1 <= len(repetitions) <= count:
        raise InvalidValueError(
            f"{count} canaries cannot take {len(repetitions)} different repetitions; plant at least one for each"
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    templates = _TEMPLATES[kind]
    references: set[str] = set()
    drawn: list[Canary] = []
    for pair in range(count):
        template, pattern = templates[pair % len(templates)]
        planted = int(generator.integers(2))
        for twin in range(2):
            prefix = template.format(reference=_fresh_reference(references, generator))
            secret = _draw_secret(pattern, generator)
            drawn.append(
                Canary(
                    id=f"{kind.value}-{pair:04d}{'ab'[twin]}",
                    pair=pair,
                    kind=kind,
                    text=f"{prefix} {secret}",
                    prefix=prefix,
                    secret=secret,
                    pattern=pattern,
                    repetitions=repetitions[pair % len(repetitions)],
                    member=twin == planted,
                )
            )
    return tuple(drawn)


def plant(
    records: Sequence[TextRecord],
    canaries: Sequence[Canary],
    out: Path,
    *,
    seed: int,
    keep_units: bool = False,
) -> None:
    """Write the corpus with the canaries that are members at uniformly random places, and the truth beside it.

    The corpus's own records keep their order. A canary's copies are one privacy unit, where units are kept.

    Raises:
        AuditError: a canary's text is already in the corpus.
        OutputExistsError: `out` exists.
        StorageError: the files cannot be written.
    """
    present = {record.text for record in records}
    taken = [canary.id for canary in canaries if canary.text in present]
    if taken:
        raise AuditError(
            f"canary {taken[0]} is in the corpus already; plant into the original corpus, or change --seed"
        )
    rows = [{"text": record.text, "canary": None, "unit": record.unit} for record in records]
    copies = [
        {"text": canary.text, "canary": canary.id, "unit": f"canary {canary.id}"}
        for canary in canaries
        if canary.member
        for _ in range(canary.repetitions)
    ]
    generator = np.random.Generator(np.random.PCG64([seed, 1]))
    order = generator.permutation(len(rows) + len(copies))
    # Places of the copies are uniform; the remaining places keep the order of the corpus.
    places = dict(zip(order[: len(copies)].tolist(), copies, strict=True))
    originals = iter(rows)
    mixed = [places[at] if at in places else next(originals) for at in range(len(order))]
    if not keep_units:
        mixed = [{key: row[key] for key in ("text", "canary")} for row in mixed]
    make_new_folder(out)
    atomic_write_bytes(out / PLANTED_NAME, json_lines(mixed))
    atomic_write_bytes(out / CANARIES_NAME, json_lines([canary.model_dump(mode="json") for canary in canaries]))
    planting = {
        "schema_version": SCHEMA_VERSION,
        "seed": seed,
        "corpus_hash": corpus_hash(records),
        "num_records": len(records),
        "num_planted": sum(canary.member for canary in canaries),
        "num_held_out": sum(not canary.member for canary in canaries),
        "num_copies": len(copies),
    }
    atomic_write_bytes(out / PLANTING_NAME, (json.dumps(planting, indent=2) + "\n").encode())


def read_canaries(path: Path) -> tuple[Canary, ...]:
    """Read a `canaries.jsonl`.

    Raises:
        AuditError: it is missing, not UTF-8, empty or malformed, or ids or texts repeat. No message quotes a canary.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"{path}: no canaries can be read ({type(error).__name__}); give a {CANARIES_NAME}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Canary.model_validate_json(line))
        except ValidationError as error:
            place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the line"
            raise AuditError(f"{path}:{number}: not a canary ({place}: {error.errors()[0]['type']})") from None
    if not found:
        raise AuditError(f"{path} holds no canaries")
    for what, values in (("ids", {c.id for c in found}), ("texts", {c.text for c in found})):
        if len(values) < len(found):
            raise AuditError(f"{path}: {what} of canaries repeat; give the file as `reticent canaries plant` wrote it")
    return tuple(found)


def _slots(pattern: str) -> tuple[tuple[str, ...], ...]:
    names = _SLOT.findall(pattern)
    unknown = sorted(set(names) - set(ALPHABETS))
    if unknown or not names:
        raise InvalidValueError(f"a canary's pattern has slots named {', '.join(ALPHABETS)}; found {unknown}")
    return tuple(ALPHABETS[name] for name in names)


def _fill_pattern(pattern: str, index: int) -> str:
    """The `index`-th filling, the last slot changing fastest."""
    symbols: list[str] = []
    for alphabet in reversed(_slots(pattern)):
        index, digit = divmod(index, len(alphabet))
        symbols.append(alphabet[digit])
    ordered = iter(reversed(symbols))
    return _SLOT.sub(lambda _: next(ordered), pattern)


def _draw_secret(pattern: str, generator: np.random.Generator) -> str:
    symbols = iter([alphabet[int(generator.integers(len(alphabet)))] for alphabet in _slots(pattern)])
    return _SLOT.sub(lambda _: next(symbols), pattern)


def _fresh_reference(taken: set[str], generator: np.random.Generator) -> str:
    while (reference := _draw_secret(_REFERENCE, generator)) in taken:
        pass
    taken.add(reference)
    return reference


def _matcher(pattern: str) -> re.Pattern[str]:
    alphabets = iter(_slots(pattern))
    literals = _SLOT.split(pattern)[::2]
    first, *rest = map(re.escape, literals)
    return re.compile(first + "".join(f"(?:{'|'.join(next(alphabets))}){literal}" for literal in rest))
