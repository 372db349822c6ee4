"""Synthetic clinic letters with known personal data and planted canaries.

Every letter is invented: names and addresses come from Faker, telephone numbers from the ranges that Ofcom keeps for
fiction, record numbers from the 999 range of the NHS that is never issued, and sentences from `reticent.demo.phrases`.
For a given version of Faker the letters are a pure function of the arguments.

A canary is a sentence with a random secret, as in Carlini et al., "The Secret Sharer" (2019), planted in one letter a
known number of times: if a model ever emits the secret, it has memorised that letter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from reticent import _validate
from reticent._files import atomic_write_bytes, json_lines
from reticent.demo import phrases
from reticent.errors import InvalidValueError, OutputExistsError, ReticentError

if TYPE_CHECKING:
    from faker import Faker

CANARY_FRACTION = 0.05
CANARY_REPETITIONS = (1, 2, 4)

_LETTERS_PER_PATIENT = (1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3)
_FIRST_BIRTH, _LAST_BIRTH = date(1934, 1, 1), date(2004, 12, 31)
_FIRST_LETTER, _LAST_LETTER = date(2021, 1, 1), date(2025, 12, 31)


@dataclass(frozen=True)
class PersonalItem:
    """A piece of personal data that stands verbatim in a letter: its kind, and the string."""

    kind: str
    value: str


@dataclass(frozen=True)
class Canary:
    """A planted secret: its kind, the secret, the sentence that holds it, and how often the letter repeats that."""

    kind: str
    secret: str
    sentence: str
    repetitions: int


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
    name: str
    title_name: str
    pronouns: Mapping[str, str]
    birth: str
    number: str
    phone: str
    address: str
    condition: phrases.Condition


def write_letters(
    path: str | Path, count: int, seed: int, *, truth_path: str | Path, canary_fraction: float = CANARY_FRACTION
) -> tuple[Letter, ...]:
    """Write letters as a JSONL corpus, and their ground truth to a JSONL file of its own; return the letters.

    Each line of the corpus has `id`, `patient` and `text`; each line of the ground truth has `id`, `patient`, `kind`,
    `personal` (a list of `kind`, `value`) and `canaries` (a list of `kind`, `secret`, `sentence`, `repetitions`).

    Raises:
        OutputExistsError: one of the files exists.
        StorageError: a file cannot be written.
        InvalidValueError, ReticentError: as `generate_letters`.
    """
    corpus_file, truth_file = Path(path), Path(truth_path)
    for file in (corpus_file, truth_file):
        if file.exists():
            raise OutputExistsError(f"{file} exists already; remove it or choose another name")
    letters = generate_letters(count, seed, canary_fraction=canary_fraction)
    atomic_write_bytes(
        truth_file, json_lines({k: v for k, v in asdict(each).items() if k != "text"} for each in letters)
    )
    atomic_write_bytes(
        corpus_file, json_lines({"id": each.id, "patient": each.patient, "text": each.text} for each in letters)
    )
    return letters


def generate_letters(count: int, seed: int, *, canary_fraction: float = CANARY_FRACTION) -> tuple[Letter, ...]:
    """Return `count` letters; about a quarter of the patients have two or three of them.

    Args:
        count: number of letters, at least 1.
        seed: a non-negative integer.
        canary_fraction: share of the letters that hold a canary, in [0, 1]; the number of letters is rounded.

    Raises:
        InvalidValueError: an argument is outside its range.
        ReticentError: Faker is not installed.
    """
    _validate.integer_in_range("count", count, 1)
    _validate.integer_in_range("seed", seed, 0)
    if not _validate.non_negative_finite("canary_fraction", canary_fraction) <= 1.0:
        raise InvalidValueError(f"canary_fraction must be at most 1, got {canary_fraction!r}")
    fake = _faker(seed)
    patients = _patients_in_order(fake, count)
    with_canary = fake.random.sample(range(count), round(canary_fraction * count))
    canaries = {position: _canary(fake, rank) for rank, position in enumerate(with_canary)}
    return tuple(
        _letter(fake, f"letter-{position:05d}", patient, canaries.get(position))
        for position, patient in enumerate(patients)
    )


def _faker(seed: int) -> "Faker":
    try:
        from faker import Faker
    except ImportError as error:
        raise ReticentError('the synthetic letters need Faker: pip install "reticent[demo]"') from error
    fake = Faker("en_GB")
    fake.seed_instance(seed)
    return fake


def _patients_in_order(fake: "Faker", count: int) -> list[_Patient]:
    """One entry a letter, in random order."""
    order: list[_Patient] = []
    for rank, record in enumerate(fake.random.sample(range(10_000_000), count)):
        order += [_patient(fake, rank, record)] * fake.random.choice(_LETTERS_PER_PATIENT)
        if len(order) >= count:
            break
    del order[count:]
    fake.random.shuffle(order)
    return order


def _patient(fake: "Faker", rank: int, record: int) -> _Patient:
    surname = fake.last_name()
    if fake.random.random() < 0.5:
        first, title = fake.first_name_female(), fake.random.choice(("Mrs", "Ms", "Miss"))
        pronouns = {"they": "she", "them": "her", "their": "her", "They": "She", "Their": "Her"}
    else:
        first, title = fake.first_name_male(), "Mr"
        pronouns = {"they": "he", "them": "him", "their": "his", "They": "He", "Their": "His"}
    dialling_code = fake.random.choice(("01632 960", "07700 900", "020 7946 0"))
    return _Patient(
        key=f"patient-{rank:05d}",
        name=f"{first} {surname}",
        title_name=f"{title} {surname}",
        pronouns=pronouns,
        birth=_format_date(fake.date_between_dates(_FIRST_BIRTH, _LAST_BIRTH)),
        number=f"999 {record // 10_000:03d} {record % 10_000:04d}",
        phone=f"{dialling_code}{fake.random.randrange(1000):03d}",
        address=f"{fake.random.randint(1, 180)} {fake.street_name()}, {fake.city()} {fake.postcode()}",
        condition=fake.random.choice(phrases.CONDITIONS),
    )


def _letter(fake: "Faker", identifier: str, patient: _Patient, canary: Canary | None) -> Letter:
    choose = fake.random.choice
    kind = choose(tuple(phrases.OUTLINES))
    fields = _fields(fake, patient)
    sentences = []
    for slot in choose(phrases.OUTLINES[kind]):
        variants = phrases.PURPOSES[kind] if slot == "purpose" else phrases.SENTENCES[slot]
        sentences.append(choose(variants).format_map(fields))
    if canary is not None:
        for _ in range(canary.repetitions):
            sentences.insert(fake.random.randint(1, len(sentences)), canary.sentence)
    header, closing = choose(phrases.HEADERS).format_map(fields), choose(phrases.CLOSINGS).format_map(fields)
    text = header + " ".join(sentences) + closing
    return Letter(
        id=identifier,
        patient=patient.key,
        kind=kind,
        text=text,
        personal=tuple(item for item in _personal_items(patient) if item.value in text),
        canaries=(canary,) if canary else (),
    )


def _fields(fake: "Faker", patient: _Patient) -> dict[str, str]:
    """A value for every placeholder of the phrase bank, drawn afresh for each letter."""
    choose, between = fake.random.choice, fake.random.randint
    condition = patient.condition
    symptom, symptom2 = fake.random.sample(condition.symptoms, 2)
    test = choose(condition.measurements)
    gp_surname = fake.last_name()
    return {
        **patient.pronouns,
        "name": patient.name,
        "title_name": patient.title_name,
        "dob": patient.birth,
        "number": patient.number,
        "phone": patient.phone,
        "address": patient.address,
        "diagnosis": condition.diagnosis,
        "clinic": condition.clinic,
        "Clinic": condition.clinic.capitalize(),
        "medication": choose(condition.medications),
        "symptom": symptom,
        "symptom2": symptom2,
        "finding": choose(condition.findings),
        "advice": choose(condition.advice),
        "test": test.name,
        "Test": test.name[0].upper() + test.name[1:],
        "unit": test.unit,
        "value": str(between(test.low, test.high)),
        "previous": str(between(test.low, test.high)),
        "pulse": str(between(58, 104)),
        "systolic": str(between(108, 168)),
        "diastolic": str(between(58, 86)),
        "days": str(between(2, 14)),
        "weeks": str(between(2, 16)),
        "months": str(between(2, 18)),
        "job": choose(phrases.JOBS),
        "household": choose(phrases.HOUSEHOLDS),
        "relative": choose(phrases.RELATIVES),
        "date": _format_date(fake.date_between_dates(_FIRST_LETTER, _LAST_LETTER)),
        "gp": f"Dr {gp_surname}",
        "gp_surname": gp_surname,
        "consultant": f"Dr {fake.first_name()[0]}. {fake.last_name()}",
    }


def _personal_items(patient: _Patient) -> Iterable[PersonalItem]:
    yield PersonalItem("name", patient.name)
    yield PersonalItem("date_of_birth", patient.birth)
    yield PersonalItem("record_number", patient.number)
    yield PersonalItem("phone", patient.phone)
    yield PersonalItem("address", patient.address)
    yield PersonalItem("diagnosis", patient.condition.diagnosis)
    for medication in patient.condition.medications:
        yield PersonalItem("medication", medication)


def _canary(fake: "Faker", rank: int) -> Canary:
    """Kinds and numbers of repetitions alternate with the rank, so that each is used equally often."""
    kind = tuple(phrases.CANARY_SENTENCES)[rank % len(phrases.CANARY_SENTENCES)]
    if kind == "portal":
        first, second = fake.random.sample(phrases.CANARY_WORDS, 2)
        secret = f"{first}-{fake.random.randrange(10_000):04d}-{second}"
    else:
        secret = " ".join(f"{fake.random.randrange(10_000):04d}" for _ in range(3))
    repetitions = CANARY_REPETITIONS[rank % len(CANARY_REPETITIONS)]
    return Canary(kind, secret, phrases.CANARY_SENTENCES[kind].format(secret=secret), repetitions)


def _format_date(day: date) -> str:
    return f"{day.day} {day:%B %Y}"
