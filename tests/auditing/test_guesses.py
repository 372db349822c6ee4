"""Single guesses of a server: places, similarities, the estimate by hand, and what they give away of training."""

import json
from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from fake_targets import Notes, random_texts
from test_audit_run import request
from text_server import TextServer, client_of, text_target
from tiny_models import build_tiny_model, byte_tokenizer

from reticent.auditing.attacks.evidence import Missing
from reticent.auditing.attacks.petal import petal, petal_with_reference
from reticent.auditing.inputs.guesses import guess_evidence, places_of
from reticent.auditing.run import run_audit
from reticent.auditing.targets.continuations import Continuer
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import AuditError
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate

TEMPLATE = TextTemplate(max_tokens=80)
PLACES = 24


def test_the_estimate_follows_the_surrogates_line():
    # r = -3 + 2 s on the surrogate, so that a target that guesses right everywhere is estimated at -1.
    assert petal(np.array([1.0, 1.0]), np.array([1.0, 0.0]), np.array([-1.0, -3.0])) == pytest.approx(-1.0)
    assert petal(np.array([0.0, 0.5]), np.array([1.0, 0.0]), np.array([-1.0, -3.0])) == pytest.approx(-2.5)
    # Least squares through (0, -3), (0, -1), (1, -1): -2 + s.
    line = petal(np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0]), np.array([-3.0, -1.0, -1.0]))
    assert line == pytest.approx(-1.0)
    assert isinstance(petal(np.ones(2), np.ones(2), np.zeros(2)), Missing)
    assert isinstance(petal(np.ones(1), np.ones(1), np.zeros(1)), Missing)
    assert petal_with_reference(np.array([1.0, 0.5]), np.array([0.5, 0.0])) == 0.5
    assert isinstance(petal_with_reference(np.zeros(0), np.zeros(0)), Missing)


def surrogate_of(module, template=TEMPLATE):
    return ModelScorer(module, byte_tokenizer(), template, "base")


@pytest.fixture(scope="module")
def untrained():
    return build_tiny_model("llama")


def test_places_are_whole_characters_after_the_templates_own_words(untrained):
    found = places_of(surrogate_of(untrained), "aé b", 99)
    assert found.prefixes == ("aé", "aé ")
    assert found.pieces == (" ", "b")
    assert found.token_ids.tolist() == byte_tokenizer()(" b")["input_ids"]
    assert found.indices.tolist() == [3, 4]
    within = places_of(surrogate_of(untrained, TextTemplate(text="N:{text}!")), "ab", 99)
    assert within.prefixes == ("N:", "N:a", "N:ab")
    assert within.pieces == ("a", "b", "!")


def test_places_are_spread_from_the_first_to_the_last(untrained):
    found = places_of(surrogate_of(untrained), "abcdefghij", 3)
    assert found.prefixes == ("a", "abcde", "abcdefghi")
    assert len(places_of(surrogate_of(untrained), "abc" * 40, 200).prefixes) == TEMPLATE.max_tokens - 1
    assert places_of(surrogate_of(untrained), "a", 3).prefixes == ()


def test_similarity_is_the_cosine_of_centred_embeddings(untrained):
    rows = untrained.get_input_embeddings().weight.double().numpy()
    centred = rows - rows.mean(axis=0)
    first, second = np.array([3, 5, 9]), np.array([4, 5, 200])
    expected = [
        centred[a] @ centred[b] / np.linalg.norm(centred[a]) / np.linalg.norm(centred[b])
        for a, b in zip(first, second, strict=True)
    ]
    found = surrogate_of(untrained).similarities(first, second)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found[1] == 1.0


class Letters(TextServer):
    """Writes one character: the next one of a text that it knows, or what `otherwise` says."""

    otherwise = "z"

    def continuation(self, prompt, max_tokens):
        return next((text[len(prompt)] for text in self.known if text.startswith(prompt)), self.otherwise)


def test_a_server_that_knows_a_text_is_at_one_everywhere_and_the_surrogate_at_its_own_guesses(untrained):
    surrogate = surrogate_of(untrained)
    server = Letters(["abcd"])
    found = guess_evidence(Continuer(client_of(server)), surrogate, ["abcd", "a", "bbbb"], 99, Notes())
    known = found[text_hash("abcd")]
    assert known.target.tolist() == [1.0, 1.0, 1.0]
    assert isinstance(found[text_hash("a")], Missing)
    with torch.inference_mode():
        ids = torch.tensor([byte_tokenizer()("abcd")["input_ids"]])
        logp = untrained(input_ids=ids).logits[0, :-1].double().log_softmax(-1)
    np.testing.assert_allclose(known.surrogate_logp, logp[range(3), ids[0, 1:]].numpy(), atol=1e-4)
    expected = surrogate.similarities(ids[0, 1:].numpy(), logp.argmax(-1).numpy())
    np.testing.assert_array_equal(known.surrogate, expected)
    b, z = (byte_tokenizer()(letter)["input_ids"] for letter in "bz")
    assert found[text_hash("bbbb")].target.tolist() == surrogate.similarities(np.array(b * 3), np.array(z * 3)).tolist()
    assert {(body["max_tokens"], body["temperature"]) for body in server.bodies} == {(1, 0.0)}


@pytest.mark.parametrize(("otherwise", "similarity"), [("\ufffd", 0.0), ("bcd", 1.0), ("  ", None)])
def test_a_guess_counts_by_its_first_token(untrained, otherwise, similarity):
    server = Letters()
    server.otherwise = otherwise
    surrogate = surrogate_of(untrained)
    found = guess_evidence(Continuer(client_of(server)), surrogate, ["ab"], 9, Notes())[text_hash("ab")]
    if similarity is None:
        (space, letter) = (np.array(byte_tokenizer()(x)["input_ids"]) for x in " b")
        similarity = surrogate.similarities(letter, space)[0]
    assert found.target.tolist() == [similarity]


def trained_on(module, texts, steps):
    """The module after so many steps on all texts at once."""
    torch.manual_seed(0)
    rows = [torch.tensor(byte_tokenizer()(text)["input_ids"]) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    module = module.requires_grad_(requires_grad=True).train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = module(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.requires_grad_(requires_grad=False).eval()


class ModelServer:
    """A completions server around a model, which writes its most likely token and shows nothing else."""

    def __init__(self, module):
        self._module, self._tokenizer = module, byte_tokenizer()

    @torch.inference_mode()
    def __call__(self, http):
        body = json.loads(http.content)
        if {"echo", "logprobs"} & body.keys():
            return httpx.Response(400)
        ids = torch.tensor([self._tokenizer(body["prompt"])["input_ids"]])
        token = int(self._module(input_ids=ids).logits[0, -1].argmax())
        return httpx.Response(200, json={"choices": [{"text": self._tokenizer.decode([token])}]})


def test_single_guesses_give_away_what_a_model_memorised_and_nothing_of_what_it_never_saw(tmp_path):
    members, nonmembers, others = (random_texts(24, seed, words=6) for seed in (11, 12, 13))
    base = trained_on(build_tiny_model("llama"), random_texts(48, 14, words=6), 60)
    weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}

    def audited(texts, folder):
        module = build_tiny_model("llama")
        module.load_state_dict(weights)
        server = ModelServer(trained_on(module, texts, 120))
        fields = {"reference": surrogate_of(base, TEMPLATE), "reference_record": {"name": "base"}}
        target = text_target(server, TEMPLATE, **fields)
        asked = request(tmp_path / folder, target, "petal,petal-reference", members, nonmembers)
        settings = replace(asked.gathering, num_places=PLACES)
        result = run_audit(replace(asked, gathering=settings), Notes())
        assert str(PLACES) in result.scoring["guesses"]
        return {attack.name: attack.auc.value for attack in result.attacks}

    memorised, ignorant = audited(members, "memorised"), audited(others, "ignorant")
    assert min(memorised.values()) > 0.9
    # 24 texts of either kind place the area at ½ with a deviation of .085.
    assert all(0.2 < area < 0.8 for area in ignorant.values())


def test_without_a_public_model_beside_the_server_there_is_no_estimate(tmp_path):
    with pytest.raises(AuditError, match="attack petal cannot run on this target: it learns on a public model"):
        run_audit(request(tmp_path, text_target(TextServer()), "petal"), Notes())
