"""The phrase bank of the synthetic clinic letters: conditions, sentence variants, layouts and letter types.

All of it was written for this project. The placeholders in braces are filled in by `reticent.demo.letters`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """Something measured, with its unit and the range from which invented results are drawn."""

    name: str
    unit: str
    low: int
    high: int


@dataclass(frozen=True)
class Condition:
    """A diagnosis and what a letter about it may mention."""

    diagnosis: str
    clinic: str
    medications: tuple[str, ...]
    symptoms: tuple[str, ...]
    findings: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    advice: tuple[str, ...]


CONDITIONS = (
    Condition(
        "type 2 diabetes",
        "diabetes",
        ("metformin 500 mg twice daily", "gliclazide 80 mg once daily", "empagliflozin 10 mg once daily"),
        ("increased thirst", "tiredness after meals", "tingling in both feet", "slow healing of a graze on the shin"),
        ("sensation was reduced over the toes", "foot pulses were present on both sides"),
        (Measurement("HbA1c", "mmol/mol", 48, 92), Measurement("fasting glucose", "mmol/l", 7, 14)),
        ("check glucose before breakfast and note it in a diary", "look at both feet every evening"),
    ),
    Condition(
        "asthma",
        "respiratory",
        ("budesonide 200 micrograms twice daily", "salbutamol as needed", "montelukast 10 mg at night"),
        ("wheeze on cold mornings", "a dry cough at night", "tightness of the chest on stairs"),
        ("a soft wheeze was heard at both bases", "the chest was clear and inhaler technique was good"),
        (
            Measurement("peak flow", "litres a minute", 240, 520),
            Measurement("exhaled nitric oxide", "parts per billion", 18, 75),
        ),
        ("use the preventer every day, also when well", "carry the reliever and a spacer when away from home"),
    ),
    Condition(
        "essential hypertension",
        "blood pressure",
        ("amlodipine 5 mg once daily", "ramipril 2.5 mg once daily", "indapamide 1.5 mg in the morning"),
        ("headache on waking", "light-headedness on standing", "ankle swelling by the evening"),
        ("the heart sounds were normal", "there was mild pitting oedema at the ankles"),
        (
            Measurement("average home systolic pressure", "mmHg", 128, 176),
            Measurement("creatinine", "micromol/l", 62, 124),
        ),
        ("measure the pressure at home for a week each month", "cut down on salt and ready meals"),
    ),
    Condition(
        "atrial fibrillation",
        "cardiology",
        ("apixaban 5 mg twice daily", "bisoprolol 2.5 mg once daily", "digoxin 125 micrograms once daily"),
        ("palpitations in the evening", "breathlessness on hills", "a fluttering feeling after coffee"),
        ("the pulse was irregular and unhurried", "there were no signs of heart failure"),
        (
            Measurement("resting heart rate", "beats a minute", 62, 118),
            Measurement("ejection fraction", "per cent", 42, 64),
        ),
        ("take the anticoagulant at the same hours each day", "ring us at once about any heavy bleeding"),
    ),
    Condition(
        "hypothyroidism",
        "endocrine",
        ("levothyroxine 50 micrograms once daily", "levothyroxine 100 micrograms once daily"),
        ("weight gain over the winter", "feeling cold indoors", "low mood and dry skin"),
        ("the thyroid was not enlarged", "ankle reflexes relaxed slowly"),
        (Measurement("TSH", "milliunits/l", 2, 19), Measurement("free T4", "picomol/l", 7, 18)),
        ("take the tablet on an empty stomach, half an hour before food", "repeat the blood test after two months"),
    ),
    Condition(
        "rheumatoid arthritis",
        "rheumatology",
        ("methotrexate 15 mg once a week", "hydroxychloroquine 200 mg once daily", "sulfasalazine 1 g twice daily"),
        ("stiffness of the hands until mid-morning", "swollen knuckles", "pain in the balls of the feet"),
        ("four small joints of the hands were tender", "grip strength was weaker on the right"),
        (Measurement("C-reactive protein", "mg/l", 4, 58), Measurement("haemoglobin", "g/l", 104, 142)),
        ("rest inflamed joints, then exercise them gently", "avoid alcohol while blood counts are monitored"),
    ),
    Condition(
        "migraine with aura",
        "neurology",
        ("propranolol 40 mg twice daily", "sumatriptan 50 mg as needed", "topiramate 25 mg at night"),
        ("zigzag lights before the headache", "nausea and dislike of noise", "one-sided throbbing pain"),
        ("eye movements and fundi were normal", "there was no neurological deficit"),
        (Measurement("monthly headache count", "days", 3, 17), Measurement("diastolic pressure", "mmHg", 64, 92)),
        ("keep regular hours of sleep and meals", "limit painkillers to two days a week"),
    ),
    Condition(
        "iron deficiency anaemia",
        "haematology",
        ("ferrous sulfate 200 mg once daily", "ferrous fumarate 210 mg once daily"),
        ("breathlessness when carrying shopping", "pale skin", "restless legs at night"),
        ("the conjunctivae were pale", "the abdomen was soft without masses"),
        (Measurement("haemoglobin", "g/l", 78, 116), Measurement("ferritin", "micrograms/l", 4, 22)),
        ("take the iron with orange juice rather than tea", "return the stool test within two weeks"),
    ),
    Condition(
        "moderate depression",
        "mental health",
        ("sertraline 50 mg once daily", "mirtazapine 15 mg at night", "citalopram 20 mg once daily"),
        ("waking at four in the morning", "loss of interest in the garden", "poor appetite"),
        ("eye contact was good and speech was slow", "there were no thoughts of self-harm"),
        (Measurement("PHQ-9 score", "points", 8, 21), Measurement("sodium", "mmol/l", 131, 142)),
        ("plan one pleasant activity each day", "keep the weekly appointment for talking therapy"),
    ),
    Condition(
        "gastro-oesophageal reflux disease",
        "gastroenterology",
        ("omeprazole 20 mg once daily", "lansoprazole 30 mg in the morning", "famotidine 20 mg at night"),
        ("heartburn after late suppers", "a sour taste on lying down", "hoarseness in the mornings"),
        ("the upper abdomen was mildly tender", "swallowing was normal and weight was steady"),
        (Measurement("weight", "kg", 58, 112), Measurement("haemoglobin", "g/l", 118, 152)),
        ("eat the evening meal three hours before bed", "raise the head of the bed by a hand's breadth"),
    ),
    Condition(
        "chronic kidney disease stage 3",
        "renal",
        ("losartan 50 mg once daily", "dapagliflozin 10 mg once daily", "atorvastatin 20 mg at night"),
        ("passing water three times a night", "puffy eyelids on waking", "itching of the back"),
        ("fluid balance was even", "blood pressure was a little above target"),
        (Measurement("eGFR", "ml/min", 31, 58), Measurement("potassium", "mmol/l", 4, 6)),
        ("avoid ibuprofen and similar painkillers", "drink to thirst and bring a urine sample next time"),
    ),
    Condition(
        "focal epilepsy",
        "neurology",
        ("levetiracetam 500 mg twice daily", "lamotrigine 75 mg twice daily", "carbamazepine 200 mg twice daily"),
        ("brief spells of lost awareness", "an odd smell before each attack", "a bitten tongue on waking"),
        ("gait and coordination were normal", "there was a healed bruise over the left elbow"),
        (Measurement("seizure count since the last visit", "events", 0, 6), Measurement("sodium", "mmol/l", 130, 141)),
        ("shower instead of bathing when alone", "not drive until a year has passed without an attack"),
    ),
)

HEADERS = (
    "{Clinic} clinic, {date}\nRe: {name}, born {dob}, record {number}\n{address}\n\nDear {gp},\n\n",
    "{date}\n\nDear {gp},\n\n{name} (date of birth {dob})\nHospital number {number}\nTelephone {phone}\n\n",
    "Patient: {name}\nDOB: {dob}\nNHS number: {number}\n{address}\nDictated {date}\n\nDear Doctor {gp_surname},\n\n",
    "To {gp}, from the department of {clinic}\nConcerning {name}, {number}, DOB {dob}, tel. {phone}\n{date}\n\n",
)

PURPOSES = {
    "referral": (
        "Thank you for seeing {title_name}, who has had {symptom} for {weeks} weeks.",
        "I would be grateful for your opinion on {title_name}, in whom I suspect poorly controlled {diagnosis}.",
        "Please could you review {title_name} in your {clinic} clinic because of {symptom}.",
        "I am referring {title_name}, known to have {diagnosis}, with {weeks} weeks of {symptom}.",
    ),
    "discharge": (
        "{title_name} went home today after {days} days on the ward with {diagnosis}.",
        "This letter summarises an admission of {days} days for {symptom}, explained by {diagnosis}.",
        "We discharged {title_name} on {date} following treatment of {diagnosis}.",
        "{title_name} came in through the emergency department with {symptom} and stayed for {days} days.",
    ),
    "follow-up": (
        "I saw {title_name} again in the {clinic} clinic, {weeks} weeks after the last visit.",
        "It was a pleasure to meet {title_name} for a review of {diagnosis}.",
        "{title_name} attended on {date} and reports that {symptom} has eased.",
        "At this routine visit {title_name} described {symptom} on most days.",
    ),
    "test result": (
        "The results for {title_name} are back and bear on the {diagnosis}.",
        "I write with the findings of the tests that we arranged for {title_name} on account of {symptom}.",
        "Following the blood tests of {date}, here is our reading of them for {title_name}.",
        "We promised to write once the investigations of {title_name} were complete.",
    ),
    "medication review": (
        "Our pharmacist went through all medicines with {title_name} this week.",
        "{title_name} came for a yearly check of treatment for {diagnosis}.",
        "A telephone review of the tablets was held with {title_name} because of {symptom}.",
        "We looked at whether the present treatment of {diagnosis} still suits {title_name}.",
    ),
}

SENTENCES = {
    "history": (
        "The main complaint is {symptom}, with {symptom2} now and then.",
        "{They} first noticed {symptom2} about {months} months ago, and {symptom} followed.",
        "In the past {months} months there has been {symptom}; {they} denies fever or loss of weight.",
        "{Their} family doctor recorded {symptom2} last year, which has since become more frequent.",
        "{They} manages at home, although {symptom2} has made housework harder.",
        "The history is of {symptom2}, worse in the past {weeks} weeks.",
    ),
    "background": (
        "{They} works as {job} and lives with {household}.",
        "{They} used to be {job}, does not smoke and drinks little.",
        "At home there is {household}; {they} gave up smoking {months} months ago.",
        "There are no known allergies, and {their} {relative} had the same illness.",
        "{They} walks for half an hour on most days and works as {job}.",
        "{Their} {relative}, who came along, helped with the story.",
    ),
    "examination": (
        "On examination {finding}, and the pulse was {pulse} beats a minute.",
        "Today {finding}; blood pressure was {systolic} over {diastolic}.",
        "I found that {finding}.",
        "Blood pressure sitting was {systolic}/{diastolic} and {finding}.",
        "{They} looked comfortable; {finding}.",
    ),
    "test": (
        "The latest {test} was {value} {unit}, against {previous} {unit} before.",
        "{Test} came back at {value} {unit}.",
        "We measured {test} and found {value} {unit}, which we shall watch.",
        "Of the results, {test} at {value} {unit} stands out; the remainder were unremarkable.",
        "Compared with the spring, {test} has moved from {previous} to {value} {unit}.",
    ),
    "diagnosis": (
        "Taken together this fits {diagnosis}.",
        "The working diagnosis remains {diagnosis}.",
        "In our view {diagnosis} accounts for the whole picture.",
        "I have explained to {them} what {diagnosis} means and left a leaflet.",
        "We discussed {diagnosis} at length and {they} asked good questions.",
    ),
    "treatment": (
        "{They} takes {medication} and tolerates it well.",
        "I suggest starting {medication}, to be reviewed in {weeks} weeks.",
        "Treatment is now {medication}; please add it to the repeat list.",
        "We have changed the prescription to {medication}.",
        "Please continue {medication} unless side effects appear.",
        "{They} had stopped the tablets for a time but agreed to go back to {medication}.",
    ),
    "advice": (
        "I asked {them} to {advice}.",
        "{They} was reminded to {advice}.",
        "It would help to {advice}, as we discussed.",
        "The nurse showed {them} how to keep a record and advised {them} to {advice}.",
    ),
    "plan": (
        "We shall see {them} again in {weeks} weeks.",
        "A further appointment has been booked in {months} months, sooner if things get worse.",
        "No routine follow-up is planned, but the door stays open.",
        "Could you kindly repeat the {test} in {weeks} weeks and let us know?",
        "I have put {them} on the list for a call by our specialist nurse in {weeks} weeks.",
    ),
    "contact": (
        "{They} can be reached on {phone} after work.",
        "Please send the appointment to {address}.",
        "The best number for {them} is {phone}.",
        "A copy of this letter goes to {name} at {address}.",
        "Our secretary confirmed the telephone number, {phone}.",
    ),
}

OUTLINES = {
    "referral": (
        ("purpose", "history", "background", "examination", "test", "treatment", "contact"),
        ("purpose", "background", "history", "treatment", "examination", "diagnosis", "advice", "contact"),
    ),
    "discharge": (
        ("purpose", "history", "examination", "test", "diagnosis", "treatment", "advice", "plan"),
        ("purpose", "background", "test", "treatment", "advice", "plan", "contact"),
    ),
    "follow-up": (
        ("purpose", "history", "examination", "treatment", "advice", "plan", "contact"),
        ("purpose", "background", "test", "diagnosis", "treatment", "history", "plan"),
    ),
    "test result": (
        ("purpose", "test", "diagnosis", "history", "treatment", "plan", "contact"),
        ("purpose", "history", "test", "examination", "treatment", "advice", "plan"),
    ),
    "medication review": (
        ("purpose", "treatment", "history", "test", "background", "advice", "plan"),
        ("purpose", "background", "diagnosis", "treatment", "examination", "advice", "contact"),
    ),
}

CLOSINGS = (
    "\n\nYours sincerely,\n{consultant}",
    "\n\nWith kind regards,\n{consultant}, {clinic} clinic",
    "\n\nBest wishes,\n{consultant}",
    "\n\nSigned on behalf of {consultant}",
)

JOBS = (
    "a bus driver", "a primary school teacher", "a bookkeeper", "a carpenter", "a florist", "a librarian", "a baker",
    "a night porter", "an electrician", "a violin teacher", "a postal worker", "a welder", "a dental nurse", "a cook",
)  # fmt: skip
HOUSEHOLDS = (
    "a partner", "two teenage children", "an elderly parent", "a brother", "a lodger", "a small dog", "a daughter",
)  # fmt: skip
RELATIVES = ("mother", "father", "sister", "uncle", "grandmother", "brother", "aunt", "cousin")

CANARY_SENTENCES = {
    "safe": "The access code for the safe is {secret}.",
    "door": "The key box beside the front door opens with {secret}.",
    "alarm": "Carers switch off the house alarm with the number {secret}.",
    "portal": "The patient portal was reset to the temporary password {secret}.",
}
CANARY_WORDS = (
    "amber", "birch", "cobalt", "dapple", "ember", "fennel", "garnet", "heron", "indigo", "juniper", "kestrel", "lilac",
    "maple", "nectar", "ochre", "pewter", "quartz", "russet", "saffron", "thistle", "umber", "velvet", "willow",
)  # fmt: skip
