"""Conversations: read, rendered by chat templates of several families, and the assistant's turns told apart by hand."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import EOS, byte_tokenizer

from reticent.errors import CorpusError, InvalidValueError
from reticent.server.messages import Message
from reticent.server.prompts import Prompts
from reticent.text.corpus import group_units, grouping_notes, read_corpus
from reticent.text.fields import join_fields, split_fields
from reticent.text.recognition import recognise_template
from reticent.text.template import CHAT_TEXT, TextTemplate, encode, encode_beginnings

CHAT = TextTemplate(text=CHAT_TEXT, max_tokens=1000)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}</s>{% else %}{{ raise_exception('no ' + m.role) }}"
    "{% endif %}{% endfor %}"
)
TURNS = (("system", "be brief"), ("user", "why?"), ("assistant", "so"), ("user", "so?"), ("assistant", "so so"))


def chat_tokenizer(template=CHATML, added=("<|im_start|>", "<|im_end|>")):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(added)})
    tokenizer.chat_template = template
    return tokenizer


def scored_parts(tokenizer, text):
    """The runs of scored tokens, decoded."""
    runs, before = [], False
    for token, scored in zip(text.token_ids.tolist(), text.is_scored.tolist(), strict=True):
        if scored and not before:
            runs.append([])
        if scored:
            runs[-1].append(token)
        before = scored
    return [tokenizer.decode(run) for run in runs]


def read(tmp_path, rows):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return read_corpus(path, layout=CHAT.layout)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def test_every_turn_of_the_assistant_is_scored_with_what_closes_it_and_nothing_else():
    tokenizer = chat_tokenizer()
    [text] = encode(tokenizer, CHAT, [join_fields(TURNS)])
    assert tokenizer.decode(text.token_ids) == "".join(
        f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in TURNS
    ).rstrip("\n")
    assert scored_parts(tokenizer, text) == ["so<|im_end|>", "so so<|im_end|>"]


def test_a_template_without_a_prompt_of_its_own_is_read_by_what_it_writes():
    tokenizer = chat_tokenizer(INST, added=("</s>",))
    [text] = encode(tokenizer, CHAT, [join_fields(TURNS[1:])])
    assert tokenizer.decode(text.token_ids) == "[INST] why? [/INST] so</s>[INST] so? [/INST] so so</s>"
    assert scored_parts(tokenizer, text) == [" so</s>", " so so</s>"]


def test_a_turn_that_no_token_closes_is_closed_by_the_end_of_the_text():
    words = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer = chat_tokenizer(words + "{% if add_generation_prompt %}assistant: {% endif %}", added=())
    [text] = encode(tokenizer, CHAT, [join_fields(TURNS[1:3])])
    assert scored_parts(tokenizer, text) == ["so<eos>"]
    assert text.token_ids[-1] == EOS


def test_what_is_trained_is_what_the_server_reads_and_then_writes():
    tokenizer = chat_tokenizer()
    [text] = encode(tokenizer, CHAT, [join_fields(TURNS)])
    prompts = Prompts(tokenizer, len(tokenizer), 500, None)
    asked = prompts.encode_chat([Message(role=role, content=said) for role, said in TURNS[:-1]])
    assert text.token_ids[: len(asked)].tolist() == asked
    assert text.is_scored[len(asked) :].all()
    assert not text.is_scored[len(asked) - 1]
    assert text.token_ids[-1] in prompts.stop_tokens


def test_a_plain_text_is_an_answer_to_nothing_and_is_continued_as_one():
    tokenizer = chat_tokenizer()
    [plain, spelt] = encode(tokenizer, CHAT, ["so", join_fields([("user", ""), ("assistant", "so")])])
    assert plain.token_ids.tolist() == spelt.token_ids.tolist()
    [begun] = encode_beginnings(tokenizer, CHAT, ["so"])
    assert tokenizer.decode(begun.token_ids) == "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\nso"


def test_messages_of_tools_are_ignored_and_counted(tmp_path):
    call = message("assistant", None, tool_calls=[{"id": "1"}])
    rows = [
        [message("user", "why?"), call, message("tool", "42", tool_call_id="1"), message("assistant", "so")],
        [message("user", [{"type": "text", "text": "a"}, {"type": "image_url"}]), message("assistant", "b")],
        [message("user", "alone")],
        [message("user", ""), message("assistant", "c")],
    ]
    corpus = read(tmp_path, rows)
    assert (corpus.ignored_messages, corpus.skipped_blank) == (2, 1)
    assert [split_fields(record.text) for record in corpus.records] == [
        (("user", "why?"), ("assistant", "so")),
        (("user", "a"), ("assistant", "b")),
        None,
    ]
    assert "2 messages of tools" in grouping_notes(corpus, group_units(corpus.records))[0]


def test_a_system_message_that_all_share_makes_no_two_conversations_one(tmp_path):
    shared = message("system", " ".join(f"rule {n} of many" for n in range(40)))
    rows = [[shared, message("user", f"{n} is asked"), message("assistant", f"and {n} is told")] for n in range(3)]
    assert group_units(read(tmp_path, rows).records).num_units == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("why?", "chats.jsonl:1: 'messages' must be a list of messages, found str"),
        ([{"content": "x"}], "message 1 must have a role"),
        ([message("user", 3)], "message 1 must have text as its content, found int"),
        ([message("assistant", "a\ufdd0b")], r"U\+FDD0"),
    ],
)
def test_what_is_no_conversation_is_named_and_never_quoted(tmp_path, value, words):
    with pytest.raises(CorpusError, match=words):
        read(tmp_path, [value])


def test_a_model_without_a_chat_template_and_one_that_refuses_say_so():
    with pytest.raises(InvalidValueError, match=r"no chat template.*--template"):
        encode(byte_tokenizer(), CHAT, [join_fields(TURNS)])
    with pytest.raises(InvalidValueError, match="refuses a conversation of the corpus") as caught:
        encode(chat_tokenizer(INST), CHAT, [join_fields(TURNS)])
    assert "brief" not in str(caught.value)


def test_messages_stand_alone_in_a_template():
    for wrong in ({"text": "{messages}!"}, {"text": CHAT_TEXT, "answer": "messages"}):
        with pytest.raises(ValueError, match="stands alone"):
            TextTemplate(**wrong)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["prompt", "completion"], ("{prompt}{completion}", "completion")),
        (["instruction", "input", "output"], ("{instruction}\n{input}\n{output}", "output")),
        (["output", "instruction"], ("{instruction}\n{output}", "output")),
        (["text", "prompt", "completion"], None),
        (["body"], None),
    ],
)
def test_common_columns_are_recognised_where_there_is_no_text(tmp_path, columns, expected, suffix):
    path = tmp_path / f"rows.{suffix}"
    row = {name: f"a {name}" for name in columns}
    if suffix == "parquet":
        pq.write_table(pa.table({name: [value] for name, value in row.items()}), path)
    elif suffix == "csv":
        path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    else:
        path.write_text(json.dumps(row) + "\n")
    assert recognise_template(path, "text") == expected


def test_conversations_are_recognised_in_files_that_have_lists(tmp_path):
    rows = [message("user", "why?"), message("assistant", "so")]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": rows}) + "\n")
    pq.write_table(pa.table({"messages": [rows]}), tmp_path / "rows.parquet")
    read_as = []
    for name in ("rows.jsonl", "rows.parquet"):
        assert recognise_template(tmp_path / name, "text") == (CHAT_TEXT, "")
        read_as.append(read_corpus(tmp_path / name, layout=CHAT.layout).records[0].text)
    assert read_as == [join_fields([("user", "why?"), ("assistant", "so")])] * 2
