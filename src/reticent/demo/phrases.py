"""The phrase bank of the synthetic clinic letters: clinics, their house style, names of doctors, planted sentences.

All of it was written for this project. The placeholders in braces are filled in by `reticent.demo.letters`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Clinic:
    """A clinic of the invented hospital: its consultant, diagnosis, medication, and symptoms its letters mention."""

    name: str
    consultant: str
    diagnosis: str
    symptoms: tuple[str, ...]
    medication: str


CLINICS = (
    Clinic(
        "diabetes",
        "Dr Marsh",
        "type 2 diabetes",
        ("thirst", "tiredness after meals", "tingling in both feet"),
        "metformin",
    ),
    Clinic(
        "asthma",
        "Dr Wells",
        "asthma",
        ("wheezing on cold mornings", "coughing at night", "tightness of the chest"),
        "budesonide",
    ),
    Clinic(
        "heart",
        "Dr Stone",
        "atrial fibrillation",
        ("palpitations in the evening", "breathlessness on hills", "fluttering of the heart"),
        "apixaban",
    ),
    Clinic(
        "thyroid",
        "Dr Lane",
        "hypothyroidism",
        ("weight gain over the winter", "feeling cold indoors", "dryness of the skin"),
        "levothyroxine",
    ),
    Clinic(
        "joint",
        "Dr Field",
        "rheumatoid arthritis",
        ("stiffness in the morning", "swelling of the knuckles", "pain in both feet"),
        "methotrexate",
    ),
    Clinic(
        "headache",
        "Dr Brook",
        "migraine",
        ("throbbing on one side", "nausea and dislike of noise", "sickness at bright light"),
        "propranolol",
    ),
)

OPENING = "Dear {gp},\n\n"
BODIES = {
    "first visit": "{title} {first} {surname}, born {birth}, came to the {clinic} clinic with {symptom}. "
    "{They} has {diagnosis} and now takes {medication}. We shall see {them} again in six weeks.",
    "review": "{title} {first} {surname}, born {birth}, came back to the {clinic} clinic. "
    "With {medication} there is less {symptom}. We shall see {them} again in three months.",
}
CLOSING = "\n\nYours sincerely,\n{consultant}"

GENERAL_PRACTITIONERS = ("Dr Hall", "Dr Green", "Dr Young", "Dr King", "Dr Ward", "Dr Gray")

NOTE = "home visit note"
NOTE_PREFIX = "Home visits to {title} {first} {surname}: the key box beside the front door opens with"
