"""The surface form of WikiText-103 for plain articles: spaced punctuation, `@-@`, headings between equals signs.

A model reads the same article differently in this form, so that figures measured in it can be put beside those of
arXiv 2609.05676, which are of WikiText-103 (Merity et al., arXiv 1609.07843). The rules are those that its lines show;
they follow the Moses tokeniser's for English.

| plain | surface form |
|---|---|
| `role-playing` | `role @-@ playing` |
| `10,000` and `4.5` | `10 @,@ 000` and `4 @.@ 5` |
| `Japan's` | `Japan 's` |
| `(born 1948), a poet.` | `( born 1948 ) , a poet .` |
| the title, a section's heading | ` = Title = `, ` = = History = = ` |
| `Category:Poets`, a section without text | left out |
"""

import re

_HEADING_CHARACTERS = 60
_ENDS_A_SENTENCE = (".", "!", "?", ":", ";", ",")
_ABBREVIATIONS = frozenset(
    (
        "Adj",
        "Adm",
        "Ave",
        "Bldg",
        "Blvd",
        "Brig",
        "Bros",
        "Capt",
        "Col",
        "Comdr",
        "Con",
        "Corp",
        "Cpl",
        "Dr",
        "Ens",
        "Gen",
        "Gov",
        "Hon",
        "Hosp",
        "Insp",
        "Jr",
        "Lt",
        "Maj",
        "Messrs",
        "Mr",
        "Mrs",
        "Ms",
        "No",
        "Nos",
        "Ph",
        "Prof",
        "Rep",
        "Rev",
        "Rt",
        "Sen",
        "Sens",
        "Sgt",
        "Sr",
        "St",
        "Supt",
        "Surg",
        "pp",
        "vs",
        "i.e",
        "e.g",
    )
)
"""Words whose full stop stays with them before a further word."""

_SPLIT_PATTERNS = (
    (re.compile(r"(?<=\w)-(?=\w)"), " @-@ "),
    (re.compile(r"(?<=\d),(?=\d)"), " @,@ "),
    (re.compile(r"(?<=\d)\.(?=\d)"), " @.@ "),
    (re.compile(r"(?<!@)([,;:?!()\[\]{}\"“”„«»…&%$£€/])(?!@)"), r" \1 "),
    (re.compile(r"(?<!\S)['\u2019](?=\S)|(?<=\S)['\u2019](?=\s|$)"), " ' "),
    (re.compile(r"(?<=\w)['\u2019](?=\w)"), " '"),
)
_LAST_STOP = re.compile(r"\.(?=\s*(?:[\"”')\]]\s*)*$)")
_INNER_STOP = re.compile(r"(\S+)\.(?=\s)")


def wikitext_form(article: str) -> str:
    """Return an article in the surface form of WikiText-103, its title first.

    A line is a heading if it stands alone after an empty line, is short, does not end like a sentence, and text
    follows directly.
    """
    lines = [line.strip() for line in article.splitlines()]
    lines = [line for line in lines if not line.startswith("Category:")]
    title, rest = _split_title(lines)
    written = [f" = {wikitext_line(title)} = \n"] if title else []
    for number, line in enumerate(rest):
        if not line or _is_bare_heading(rest, number):
            continue
        heading = _is_heading(rest, number)
        text = wikitext_line(line)
        written.append(f" = = {text} = = \n" if heading else f" {text} \n")
    return "".join(written)


def wikitext_line(line: str) -> str:
    """Return one line of text with its punctuation spaced, without spaces at its ends."""
    for pattern, replacement in _SPLIT_PATTERNS:
        line = pattern.sub(replacement, line)
    line = _INNER_STOP.sub(_spaced_stop, line)
    return " ".join(_LAST_STOP.sub(" .", line).split())


def _spaced_stop(found: re.Match[str]) -> str:
    """Part a full stop from its word, unless the word is an initial, an abbreviation, or holds a stop itself."""
    word = found[1]
    is_abbreviation = word in _ABBREVIATIONS or re.fullmatch(r"[A-Z]|.*[A-Za-z]\.[A-Za-z]+|\.+", word)
    return found[0] if is_abbreviation else f"{word} ."


def _split_title(lines: list[str]) -> tuple[str, list[str]]:
    for number, line in enumerate(lines):
        if line:
            return line, lines[number + 1 :]
    return "", []


def _is_heading(lines: list[str], number: int) -> bool:
    return _looks_like_a_heading(lines, number) and number + 1 < len(lines) and bool(lines[number + 1])


def _is_bare_heading(lines: list[str], number: int) -> bool:
    """True if the line is a heading with no text of its own: another heading, or the end, comes next."""
    if not _looks_like_a_heading(lines, number) or (number + 1 < len(lines) and lines[number + 1]):
        return False
    following = next((after for after in range(number + 1, len(lines)) if lines[after]), None)
    return following is None or _is_heading(lines, following) or _looks_like_a_heading(lines, following)


def _looks_like_a_heading(lines: list[str], number: int) -> bool:
    line = lines[number]
    stands_alone = number == 0 or not lines[number - 1]
    return stands_alone and 0 < len(line) <= _HEADING_CHARACTERS and not line.endswith(_ENDS_A_SENTENCE)
