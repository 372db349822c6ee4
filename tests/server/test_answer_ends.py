"""Where answers begin and end, by a model that only ever writes one token, which its generation configuration alone
calls an end, and whose tokenizer begins every text with a token.
"""

import contextlib
import json

import pytest
from cli.built_runs import build_small_run
from server.conftest import Parts, launcher
from tiny_models import BOS, EOS, byte_tokenizer, save_single_minded_model
from tokenizers.processors import TemplateProcessing
from worlds.small_runs import write_corpus

from reticent.cli import main as cli
from reticent.worlds.run_directory import RunDirectory


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    save_single_minded_model(folder / "base", BOS)
    configuration = folder / "base" / "generation_config.json"
    configuration.write_text(json.dumps(json.loads(configuration.read_text()) | {"eos_token_id": [EOS, BOS]}))
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer.save_pretrained(folder / "base")
    return build_small_run(write_corpus(folder / "notes.jsonl"), folder / "base", folder / "run", max_tokens=16)


@pytest.fixture
def server(run, tmp_path):
    opened = RunDirectory.open(run)
    base = opened.base()
    parts = Parts(opened.engine(base), base.load_tokenizer(), opened.manifest.num_worlds, base.declared_ends)
    with contextlib.ExitStack() as stack:
        yield launcher(stack, parts, tmp_path)()


def test_generate_stops_at_an_end_that_the_model_declares(run, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(run.parent / "config"))
    capsys.readouterr()
    assert byte_tokenizer().eos_token_id == EOS
    assert cli.main(["generate", str(run), "--prompt", "ab", "--max-tokens", "8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["tokens"], result["stopped_by"], result["text"]) == (1, "end of text", "")


def test_the_server_stops_at_an_end_that_the_model_declares(server):
    answer = server.openai().completions.create(model="tiny", prompt="ab", max_tokens=8)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason, answer.choices[0].text) == (1, "stop", "")
    assert server.ledger.curator.state.tokens_released == 1


def test_no_beginning_is_doubled_and_an_empty_prompt_is_one(server, run, monkeypatch):
    ask = server.openai().completions.create
    lengths = [ask(model="tiny", prompt=text, max_tokens=1).usage.prompt_tokens for text in ("Hi", "<bos>Hi", "")]
    assert lengths == [3, 3, 1]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(run.parent / "config"))
    assert cli.main(["generate", str(run), "--max-tokens", "1", "--json"]) == 0
