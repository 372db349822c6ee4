"""What reaches the engine is in the model's vocabulary, however a client says it."""

import pytest
from tiny_models import BOS, EOS, byte_tokenizer

from reticent.server.errors import ApiError
from reticent.server.prompts import Prompts
from reticent.server.schemas import Message


@pytest.fixture
def prompts():
    """Of a model with as many embeddings as its tokenizer had tokens before one was added."""
    tokenizer = byte_tokenizer()
    vocab_size = len(tokenizer)
    tokenizer.add_tokens(["[PAD]"])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return Prompts(tokenizer, vocab_size, context_length=64, max_prompt_tokens=None)


def test_a_token_the_model_has_no_embedding_for_is_the_clients_error(prompts):
    chat = [Message(role="user", content="hello [PAD] there")]
    asked = [
        (prompts.encode, "hello [PAD] there", "prompt"),
        (prompts.encode, [1, prompts.encode("a")[0], 10**6], "prompt"),
        (prompts.encode_chat, chat, "messages"),
    ]
    for encode, prompt, field in asked:
        with pytest.raises(ApiError, match="outside the vocabulary") as raised:
            encode(prompt)
        assert (raised.value.status, raised.value.body["error"]["param"]) == (400, field)
    assert prompts.encode("hello there")


def test_every_end_ends_an_answer():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|im_end|>"], special_tokens=True)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}<|im_end|>\n{% endfor %}"
    [turn_end] = tokenizer("<|im_end|>")["input_ids"]
    stops = Prompts(tokenizer, len(tokenizer), 64, None, declared_ends=[BOS]).stop_tokens
    assert stops == {EOS, turn_end, BOS}


def test_a_completions_prompt_is_encoded_as_training_texts_are(prompts):
    assert prompts.encode("<bos><bos>Hi<eos>") == [BOS, *prompts.encode("Hi"), EOS]
    with pytest.raises(ApiError, match="no token to start from") as raised:
        prompts.encode("")
    assert raised.value.body["error"]["param"] == "prompt"
