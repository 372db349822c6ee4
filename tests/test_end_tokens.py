"""Which tokens end an answer: what the tokenizer, the model's own files and its chat template say."""

import json

import pytest
from tiny_models import BOS, EOS, byte_tokenizer

from reticent.errors import ModelError
from reticent.models.base import PACKAGED_MODEL, LanguageModel, resolve_base_model
from reticent.text.end_tokens import end_tokens, turn_end

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
)
LLAMA_3 = "{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} <eos>{% endif %}{% endfor %}"
)


def tokenizer_with(template, *added, special=True):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(list(added), special_tokens=special)
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "end"),
    [(CHATML, "<|im_end|>"), (GEMMA, "<end_of_turn>"), (LLAMA_3, "<|eot_id|>"), (LLAMA_2, "<eos>")],
)
@pytest.mark.parametrize("special", [True, False])
def test_the_token_behind_an_assistants_turn_ends_an_answer(template, end, special):
    marks = ["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|start|>", "<|end|>", "<|eot_id|>"]
    tokenizer = tokenizer_with(template, *marks, special=special)
    [token] = tokenizer(end, add_special_tokens=False)["input_ids"]
    assert turn_end(tokenizer) == token
    assert end_tokens(tokenizer) == {EOS, token}
    assert end_tokens(tokenizer, [BOS]) == {EOS, token, BOS}


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",  # a line break is ordinary text
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}",  # an added token, but of white space
        "{% for m in messages %}{{ m.role }}: {{ m.content }} END\n{% endfor %}",  # several tokens
        "{{ raise_exception('no assistants') }}",
        "{{ messages[0].content }}<|im_end|>",  # says nothing of the assistant's turn
        "{{ nonsense",
    ],
)
def test_a_template_without_a_token_for_it_names_no_end(template):
    tokenizer = tokenizer_with(template, "<|im_end|>", "\n\n")
    assert turn_end(tokenizer) is None
    assert end_tokens(tokenizer) == {EOS}


def test_a_tokenizer_without_an_end_leaves_the_others():
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    assert end_tokens(tokenizer) == frozenset()
    assert end_tokens(tokenizer, [3]) == {3}


def test_the_packaged_model_ends_with_its_turn():
    base = resolve_base_model(PACKAGED_MODEL)
    tokenizer = base.load_tokenizer()
    assert end_tokens(tokenizer, base.declared_ends) == set(tokenizer("<|im_end|>")["input_ids"])


def declared(folder, name, content):
    (folder / name).write_text(content)
    return LanguageModel("tiny", folder).declared_ends


@pytest.mark.parametrize(
    ("ends", "expected"), [(257, {257}), ([257, 256], {256, 257}), (None, set()), ([], set()), ([0], {0})]
)
def test_a_generation_configuration_declares_one_end_several_or_none(tmp_path, ends, expected):
    assert declared(tmp_path, "generation_config.json", json.dumps({"eos_token_id": ends, "top_p": 0.9})) == expected


def test_the_models_configuration_counts_where_there_is_no_other(tmp_path):
    assert LanguageModel("tiny", tmp_path).declared_ends == set()
    assert declared(tmp_path, "config.json", '{"eos_token_id": [5, 6]}') == {5, 6}
    assert declared(tmp_path, "generation_config.json", '{"eos_token_id": 7}') == {7}
    assert declared(tmp_path, "generation_config.json", "{}") == set()


@pytest.mark.parametrize("content", ['{"eos_token_id": "<eos>"}', '{"eos_token_id": [1, true]}', "[]", "{", "\xff"])
def test_ends_that_cannot_be_read_are_an_error_that_names_the_file(tmp_path, content):
    with pytest.raises(ModelError, match=r"eos_token_id.*generation_config\.json"):
        declared(tmp_path, "generation_config.json", content)
