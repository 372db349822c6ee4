"""Synthetic clinic letters in one house style, with known personal data and one planted secret.

Every letter is invented: names come from Faker, all else from `reticent.demo.phrases`. A patient has
two letters, of a first visit and of a review. For a given version of Faker the letters are a pure function of the
arguments.

The planted secret is a canary as in Carlini et al., "The Secret Sharer" (2019): a note about one further patient, with
random digits, filed again at every visit. A model that writes the digits has memorised them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reticent import _validate
from reticent._files import atomic_write_bytes, json_lines
from reticent.demo import phrases
from reticent.errors import CorpusError, InvalidValueError, OutputExistsError, ReticentError

if TYPE_CHECKING:
    from faker import Faker

_LETTERS_A_PATIENT = len(phrases.BODIES)
_FIRST_BIRTH, _LAST_BIRTH = 1934, 2004


@dataclass(frozen=True)
class PersonalItem:
    """A piece of personal data that stands verbatim in a letter: its kind, and the string."""

    kind: str
    value: str


@dataclass(frozen=True)
class Canary:
    """A planted secret.

    Attributes:
        prefix: the words before it, with which the note begins.
        secret: its random digits.
        repetitions: how often the note was filed.
    """

    prefix: str
    secret: str
    repetitions: int

    @property
    def sentence(self) -> str:
        """The whole note."""
        return f"{self.prefix} {self.secret}."


@dataclass(frozen=True)
class Letter:
    """One letter with its ground truth; `patient` is the privacy unit, `kind` the type of letter."""

    id: str
    patient: str
    kind: str
    text: str
    personal: tuple[PersonalItem, ...]
    canaries: tuple[Canary, ...]


@dataclass(frozen=True)
class _Patient:
    key: str
    title: str
    first: str
    surname: str
    pronouns: Mapping[str, str]
    birth: str
    gp: str
    clinic: phrases.Clinic

    @property
    def names(self) -> dict[str, str]:
        """The values of the placeholders of a name."""
        return {"title": self.title, "first": self.first, "surname": self.surname}


def write_letters(
    path: str | Path, count: int, seed: int, *, truth_path: str | Path, planted: int = 0
) -> tuple[Letter, ...]:
    """Write letters as a JSONL corpus, and their ground truth to a JSONL file of its own; return the letters.

    Each line of the corpus has `id`, `patient` and `text`; each line of the ground truth has `id`, `patient`, `kind`,
    `personal` (a list of `kind`, `value`) and `canaries` (a list of `prefix`, `secret`, `repetitions`).

    Raises:
        OutputExistsError: one of the files exists.
        StorageError: a file cannot be written.
        InvalidValueError, ReticentError: as `generate_letters`.
    """
    corpus_file, truth_file = Path(path), Path(truth_path)
    for file in (corpus_file, truth_file):
        if file.exists():
            raise OutputExistsError(f"{file} exists already; remove it or choose another name")
    letters = generate_letters(count, seed, planted=planted)
    atomic_write_bytes(
        truth_file, json_lines({k: v for k, v in asdict(each).items() if k != "text"} for each in letters)
    )
    atomic_write_bytes(
        corpus_file, json_lines({"id": each.id, "patient": each.patient, "text": each.text} for each in letters)
    )
    return letters


def read_letters(path: str | Path, truth_path: str | Path) -> tuple[Letter, ...]:
    """Read what `write_letters` wrote.

    Raises:
        CorpusError: a file is missing, or is not one of those.
    """
    try:
        rows, truths = (
            [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()] for file in (path, truth_path)
        )
        return tuple(
            Letter(
                id=truth["id"],
                patient=truth["patient"],
                kind=truth["kind"],
                text=row["text"],
                personal=tuple(PersonalItem(**item) for item in truth["personal"]),
                canaries=tuple(Canary(**canary) for canary in truth["canaries"]),
            )
            for row, truth in zip(rows, truths, strict=True)
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise CorpusError(f"{path} and {truth_path} are not letters with their ground truth; remove both") from None


def generate_letters(count: int, seed: int, *, planted: int = 0) -> tuple[Letter, ...]:
    """Return `count` letters in random order, two a patient.

    Args:
        count: number of letters, at least 1.
        seed: a non-negative integer.
        planted: how many of them are the note with the planted secret, all about one patient; 0 for none.

    Raises:
        InvalidValueError: an argument is outside its range.
        ReticentError: Faker is not installed.
    """
    _validate.integer_in_range("count", count, 1)
    _validate.integer_in_range("seed", seed, 0)
    if _validate.integer_in_range("planted", planted, 0) > count:
        raise InvalidValueError(f"planted must be at most the number of letters, {count}, got {planted}")
    fake = _faker(seed)
    num_patients = -(-(count - planted) // _LETTERS_A_PATIENT)
    patients = (_patient(fake, rank) for rank in range(num_patients))
    ordinary = [(patient, kind) for patient in patients for kind in phrases.BODIES][: count - planted]
    visits: list[tuple[_Patient, str, Canary | None]] = [(*visit, None) for visit in ordinary]
    if planted:
        patient = _patient(fake, num_patients)
        canary = Canary(phrases.NOTE_PREFIX.format_map(patient.names), _digits(fake), planted)
        visits += [(patient, phrases.NOTE, canary)] * planted
    fake.random.shuffle(visits)
    return tuple(_letter(fake, f"letter-{position:05d}", *visit) for position, visit in enumerate(visits))


def _faker(seed: int) -> "Faker":
    try:
        from faker import Faker
    except ImportError as error:
        raise ReticentError('the synthetic letters need Faker: pip install "reticent[demo]"') from error
    fake = Faker("en_GB")
    fake.seed_instance(seed)
    return fake


def _patient(fake: "Faker", rank: int) -> _Patient:
    choose = fake.random.choice
    if fake.random.random() < 0.5:
        first, title, pronouns = fake.first_name_female(), "Mrs", {"They": "She", "them": "her"}
    else:
        first, title, pronouns = fake.first_name_male(), "Mr", {"They": "He", "them": "him"}
    return _Patient(
        key=f"patient-{rank:05d}",
        title=title,
        first=first,
        surname=fake.last_name(),
        pronouns=pronouns,
        birth=str(fake.random.randint(_FIRST_BIRTH, _LAST_BIRTH)),
        gp=choose(phrases.GENERAL_PRACTITIONERS),
        clinic=choose(phrases.CLINICS),
    )


def _letter(fake: "Faker", identifier: str, patient: _Patient, kind: str, canary: Canary | None) -> Letter:
    text = _text(fake, patient, kind) if canary is None else canary.sentence
    return Letter(
        id=identifier,
        patient=patient.key,
        kind=kind,
        text=text,
        personal=tuple(item for item in _personal_items(patient) if item.value in text),
        canaries=() if canary is None else (canary,),
    )


def _text(fake: "Faker", patient: _Patient, kind: str) -> str:
    clinic = patient.clinic
    fields = {
        **patient.pronouns,
        **patient.names,
        "birth": patient.birth,
        "gp": patient.gp,
        "clinic": clinic.name,
        "symptom": fake.random.choice(clinic.symptoms),
        "diagnosis": clinic.diagnosis,
        "medication": clinic.medication,
        "consultant": clinic.consultant,
    }
    return (phrases.OPENING + phrases.BODIES[kind] + phrases.CLOSING).format_map(fields)


def _personal_items(patient: _Patient) -> Iterator[PersonalItem]:
    yield PersonalItem("name", f"{patient.first} {patient.surname}")
    yield PersonalItem("year_of_birth", patient.birth)
    yield PersonalItem("diagnosis", patient.clinic.diagnosis)
    yield PersonalItem("medication", patient.clinic.medication)


def _digits(fake: "Faker") -> str:
    return " ".join(f"{fake.random.randrange(10_000):04d}" for _ in range(2))
