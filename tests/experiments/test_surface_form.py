"""The surface form of WikiText-103, against lines worked by hand from its published samples."""

import pytest

from experiments.pac.surface_form import wikitext_form, wikitext_line


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        (
            "It is a tactical role-playing video game developed by Sega and Media.Vision for the PlayStation Portable.",
            "It is a tactical role @-@ playing video game developed by Sega and Media.Vision for the PlayStation "
            "Portable .",
        ),
        ("Released in January 2011 in Japan, it is Japan's third.", "Released in January 2011 in Japan , it is Japan "
         "'s third ."),
        ("About 10,000 copies at 4.5 %.", "About 10 @,@ 000 copies at 4 @.@ 5 % ."),
        ("Smith (born 1948) was a poet; he wrote.", "Smith ( born 1948 ) was a poet ; he wrote ."),
        ("Dr. Jones met J. Smith in the U.S. army. He left.", "Dr. Jones met J. Smith in the U.S. army . He left ."),
        ('He said: "It didn\'t work."', 'He said : " It didn \'t work . "'),
        ("The dogs' bowls", "The dogs ' bowls"),
        ("1,234,567 people", "1 @,@ 234 @,@ 567 people"),
    ],
)  # fmt: skip
def test_punctuation_is_spaced_as_in_wikitext(plain: str, expected: str) -> None:
    assert wikitext_line(plain) == expected


def test_an_article_gets_its_headings_and_loses_what_wikitext_has_not() -> None:
    article = (
        "Eugene Balme\n\nEugene Balme was a French shooter who competed at the 1900 Games.\n\n"
        "History\nThe idea came late.\nIt stayed.\n\nReferences\n\nExternal links\n\nCategory:Shooters\nCategory:France"
    )
    assert wikitext_form(article) == (
        " = Eugene Balme = \n"
        " Eugene Balme was a French shooter who competed at the 1900 Games . \n"
        " = = History = = \n"
        " The idea came late . \n"
        " It stayed . \n"
    )


def test_a_short_paragraph_that_ends_like_a_sentence_is_no_heading() -> None:
    assert wikitext_form("Title\n\nIt is small.\n\nMore text follows here, at length.") == (
        " = Title = \n It is small . \n More text follows here , at length . \n"
    )


def test_nothing_gives_nothing() -> None:
    assert wikitext_form("") == ""
