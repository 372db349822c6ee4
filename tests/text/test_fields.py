"""Records of several columns: one string each, told apart by what they hold and never by what surrounds it."""

import json

import pytest

from reticent.errors import CorpusError
from reticent.text.corpus import group_units, read_corpus
from reticent.text.fields import RecordLayout, join_fields, readable_text, split_fields
from reticent.text.in_memory import corpus_of_rows
from reticent.text.template import TextTemplate

ASKED = TextTemplate(text="Q: {question}\nA: {answer}", answer="answer").layout


def read(tmp_path, rows, layout=ASKED, **options):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_corpus(path, layout=layout, **options)


def test_a_record_gives_its_columns_back_and_a_text_stays_a_text():
    fields = (("question", "why {answer}?"), ("answer", "two\nlines"))
    assert split_fields(join_fields(fields)) == fields
    assert split_fields("why?") is None
    assert readable_text(join_fields(fields)) == "why {answer}?\ntwo\nlines"
    assert readable_text("why?") == "why?"


def test_columns_of_the_template_are_read_in_one_order_and_others_are_left_alone(tmp_path):
    rows = [{"answer": "yes", "other": [1], "question": "is it?"}, {"question": None, "answer": "no"}]
    corpus = read(tmp_path, [*rows, {"question": 7, "answer": "one"}, {"question": "lost", "answer": "  "}])
    expected = [(("answer", "yes"), ("question", "is it?")), None, (("answer", "one"), ("question", "7"))]
    assert [split_fields(record.text) for record in corpus.records] == expected
    assert corpus.records[1].text == "no"
    assert corpus.skipped_blank == 1
    assert corpus_of_rows(rows, layout=ASKED).records[0].text == corpus.records[0].text


def test_the_column_named_text_is_that_of_the_text_key(tmp_path):
    layout = TextTemplate(text="{title}: {text}", answer="text").layout
    corpus = read(tmp_path, [{"title": "a", "body": "b", "text": "wrong"}], layout, text_key="body")
    assert split_fields(corpus.records[0].text) == (("text", "b"), ("title", "a"))


def test_without_an_answer_a_record_is_blank_only_where_all_its_columns_are(tmp_path):
    layout = TextTemplate(text="{title}\n{text}").layout
    corpus = read(tmp_path, [{"title": "a", "text": ""}, {"title": " ", "text": ""}], layout)
    assert ([record.text for record in corpus.records], corpus.skipped_blank) == (
        [join_fields([("text", ""), ("title", "a")])],
        1,
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "x"}, "rows.jsonl:1: there is no key 'answer'"),
        ({"question": ["x"], "answer": "y"}, "rows.jsonl:1: the value of 'question' must be text, found list"),
        ({"question": "x", "answer": None}, "the value of 'answer' must be text"),
        ({"question": "x\ufdd0y", "answer": "z"}, r"U\+FDD0"),
        ({"question": "x", "answer": "a\ufdd1"}, r"U\+FDD1"),
    ],
)
def test_what_is_no_column_of_text_is_named_and_never_quoted(tmp_path, row, words):
    with pytest.raises(CorpusError, match=words):
        read(tmp_path, [row])


def test_units_are_compared_by_what_their_columns_hold(tmp_path):
    long = "the patient came on Monday with a cough and left on Friday without one"
    rows = [
        {"question": long, "answer": "yes"},
        {"question": f"{long}!", "answer": "Yes"},
        {"question": "short", "answer": "yes"},
    ]
    assert group_units(read(tmp_path, rows).records).unit_of_record.tolist() == [0, 0, 1]


def test_the_main_column_can_be_exchanged_alone():
    record = join_fields([("a", "1"), ("main", "2"), ("b", "3")])
    layout = RecordLayout(("a", "main", "b"), "main")
    before, value, after = layout.split_main(record)
    assert (value, before + value + after) == ("2", record)
    assert layout.values(before + "other" + after) == {"a": "1", "main": "other", "b": "3"}
    assert layout.split_main("plain") == ("", "plain", "")
