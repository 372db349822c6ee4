"""Conversations from a file to an answer and a report: worlds, the server, OpenAI's client, an audit."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import Parts
from tiny_models import byte_tokenizer, save_tiny_model

from reticent.cli import main as cli
from reticent.text.corpus import text_hash
from reticent.text.fields import join_fields
from reticent.worlds.run_directory import RunDirectory

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def words(generator):
    return " ".join("".join(chr(97 + c) for c in generator.integers(0, 26, 4)) for _ in range(3))


@pytest.fixture(scope="module")
def conversations():
    generator = np.random.default_rng(3)
    return [[("user", words(generator)), ("assistant", words(generator))] for _ in range(12)]


@pytest.fixture(scope="module")
def built(tmp_path_factory, conversations):
    """A run built by the command, told nothing of the columns."""
    folder = tmp_path_factory.mktemp("chats")
    save_tiny_model(folder / "base", "llama", layers=2)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "base")
    rows = [[{"role": role, "content": said} for role, said in turns] for turns in conversations]
    rows[0].insert(1, {"role": "tool", "content": "called"})
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    command = ["worlds", "build", folder / "chats.jsonl", "--model", folder / "base", "--out", folder / "run"]
    assert cli.main([str(word) for word in (*command, "--worlds", 4, "--max-tokens", 64)]) == 0
    return folder


@pytest.fixture(scope="module")
def parts(built):
    run = RunDirectory.open(built / "run")
    base = run.base()
    return Parts(run.engine(base), base.load_tokenizer(), run.manifest.num_worlds)


def test_the_run_says_that_it_was_trained_on_conversations(built):
    template = RunDirectory.open(built / "run").manifest.template
    assert template is not None
    assert (template.text, template.max_tokens) == ("{messages}", 64)


def test_the_server_asks_as_training_did_and_its_client_gets_an_answer(live, conversations):
    client = live(total_budget=2.0**-20, chat_template=TEMPLATE).openai()
    asked = conversations[0][0][1]
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": asked}], max_tokens=4, temperature=0
    )
    assert answer.usage.prompt_tokens == len(f"u:{asked}\na:")
    assert 1 <= answer.usage.completion_tokens <= 4
    assert answer.usage.privacy["tokens_charged"] == answer.usage.completion_tokens


def test_a_world_is_audited_on_what_its_assistant_says(capfd, built, conversations, tmp_path):
    command = ["audit", built / "run", "--world", 1, "--members", built / "chats.jsonl", "--out", tmp_path / "audit"]
    options = ["--attacks", "likelihood,reference,neighbourhood,lira", "--neighbours", 2, "--bootstrap", 50, "--json"]
    assert cli.main([str(word) for word in (*command, *options)]) == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert [attack["name"] for attack in report["attacks"]] == ["likelihood", "reference", "neighbourhood", "lira"]
    assert (report["data"]["num_members"], report["data"]["num_nonmembers"]) == (6, 6)
    hashes = set(pq.read_table(tmp_path / "audit" / "scores.parquet").to_pydict()["text_hash"])
    assert hashes == {text_hash(join_fields(turns)) for turns in conversations}
    assert not any(said in out + err for turns in conversations for _, said in turns)
