"""All ten techniques on all families: they start right, train alone, are stored whole, and come off without a trace."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import peft
import pytest
import safetensors.torch
import torch
from pydantic import ValidationError
from tiny_models import ADAPTABLE_FAMILIES, BOS, EOS, FAMILIES, build_tiny_model, tiny_config
from transformers import AutoModelForCausalLM

from reticent.errors import InvalidValueError, ModelError
from reticent.training.techniques.registry import (
    TECHNIQUES,
    Technique,
    TechniqueSettings,
    attach,
    attach_demonstrations,
    base_class_name,
    detach,
    disabled,
    enable_gradient_checkpointing,
    load_peft_folder,
    load_technique,
    num_trainable,
    num_virtual_rows,
    parse_technique,
    positions_taken,
    save_technique,
    technique_of,
    technique_parameters,
)

SETTINGS = TechniqueSettings(rank=2, bottleneck=5, prefix_tokens=6, p_tuning_tokens=4, prompt_tokens=3)
ADDED = tuple(technique for technique in Technique if technique not in (Technique.FULL, Technique.ICL))
STARTS_AS_ITS_BASE = {Technique.LORA, Technique.ADAPTER_H, Technique.ADAPTER_P, Technique.PARALLEL, Technique.IA3}
DOCUMENT = Path(__file__).parents[2] / "docs" / "adapt.md"
IDS = torch.tensor([[1, 2, 3, 7, 9], [4, 5, 6, 8, 2]])
WORDS = torch.tensor([11, 12, 13, 14])


def tiny(family, dtype=torch.float32):
    return build_tiny_model(family, layers=2, dtype=dtype)


def inputs_of(module):
    """Keyword arguments of a forward: the second text is padded."""
    mask = torch.ones_like(IDS)
    mask[1, 3:] = 0
    labels = IDS.flip(1) if module.config.is_encoder_decoder else IDS
    return {"input_ids": IDS, "attention_mask": mask, "labels": labels, "use_cache": False}


def logits(module):
    with torch.no_grad():
        return module(**inputs_of(module)).logits


def shaken(module, seed=3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in technique_parameters(module):
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


class RecordedSettings:
    """Settings that remember which of them were read."""

    def __init__(self):
        self.read = set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(SETTINGS, name)


@pytest.mark.parametrize("technique", [technique for technique in Technique if technique is not Technique.ICL])
def test_a_technique_names_the_settings_it_reads(technique):
    settings = RecordedSettings()
    TECHNIQUES[technique].attach(tiny("llama"), settings)
    assert settings.read == set(TECHNIQUES[technique].settings_read)


def test_every_name_has_a_technique_and_the_document_a_row():
    assert list(TECHNIQUES) == list(Technique)
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert [name for name in rows if name in set(Technique)] == list(Technique)


@pytest.mark.parametrize("technique", [Technique.FULL, *ADDED])
def test_a_module_knows_its_technique(technique):
    assert technique_of(tiny("llama")) is TECHNIQUES[Technique.FULL]
    assert technique_of(attach(tiny("llama"), technique, SETTINGS)) is TECHNIQUES[technique]


def test_an_adapter_of_another_kind_of_pefts_is_read_and_never_trained(tmp_path):
    base = tiny("llama")
    by_peft = peft.get_peft_model(base, peft.LoHaConfig(target_modules=["q_proj"], r=2, init_weights=False))
    by_peft.peft_config["default"].task_type = "CAUSAL_LM"
    expected = logits(by_peft)
    by_peft.save_pretrained(tmp_path)
    module = load_peft_folder(tiny("llama"), tmp_path)
    assert type(technique_of(module)).__name__ == "OtherPeft"
    assert torch.equal(logits(module), expected)
    assert num_virtual_rows(module) == positions_taken(module) == num_trainable(module) == 0
    with disabled(module):
        assert torch.equal(logits(module), logits(tiny("llama")))


def test_a_peft_folder_of_another_technique_is_refused(tmp_path):
    save_technique(attach(tiny("llama"), Technique.IA3, SETTINGS), tmp_path)
    with pytest.raises(ModelError, match=r"holds a PEFT adapter of type .*IA3, not LORA"):
        load_technique(tiny("llama"), Technique.LORA, SETTINGS, tmp_path)


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
@pytest.mark.parametrize("technique", ADDED)
def test_a_technique_moves_the_model_is_stored_and_comes_off_without_a_trace(family, technique, tmp_path):
    base = tiny(family)
    before, state = logits(base), {name: tensor.clone() for name, tensor in base.state_dict().items()}
    configuration = base.config.to_dict()

    module = attach(base, technique, SETTINGS)
    assert base_class_name(module) == type(base).__name__
    rows = num_virtual_rows(module)
    first = logits(module)[:, rows:]
    assert first.shape == before.shape
    assert torch.equal(first, before) == (technique in STARTS_AS_ITS_BASE)

    trained = logits(shaken(module))
    assert not torch.allclose(trained[:, rows:], before, atol=1e-3)
    with disabled(module):
        assert torch.equal(logits(module), before)
    save_technique(module, tmp_path)

    restored = detach(module)
    assert restored is base
    assert torch.equal(logits(restored), before)
    assert restored.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in restored.state_dict().items())
    assert restored.config.to_dict() == configuration

    again = load_technique(restored, technique, SETTINGS, tmp_path)
    assert torch.equal(logits(again), trained)
    assert not again.training
    assert num_trainable(again) == 0
    assert torch.equal(logits(detach(again)), before)
    assert all(path.suffix in (".json", ".safetensors") for path in tmp_path.iterdir())


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
@pytest.mark.parametrize("technique", ADDED)
def test_only_what_a_technique_adds_is_trained_and_all_of_it(family, technique):
    module = shaken(attach(tiny(family), technique, SETTINGS))
    own = {id(parameter) for parameter in technique_parameters(module)}
    training = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    assert own == training
    module(**inputs_of(module)).loss.backward()
    for parameter in module.parameters():
        assert (parameter.grad is not None) == (id(parameter) in own)
        assert id(parameter) not in own or parameter.grad.any()


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_full_fine_tuning_is_the_model_itself(family, tmp_path):
    module = attach(tiny(family), Technique.FULL, SETTINGS)
    assert num_trainable(module) == sum(parameter.numel() for parameter in module.parameters())
    trained = logits(shaken(module))
    save_technique(module, tmp_path)
    base = tiny(family)
    untouched = logits(base)
    again = load_technique(base, Technique.FULL, SETTINGS, tmp_path)
    assert torch.equal(logits(again), trained)
    assert torch.equal(logits(base), untouched)
    with pytest.raises(InvalidValueError, match="load the base again"):
        detach(again)
    with pytest.raises(InvalidValueError, match="cannot be switched off"), disabled(again):
        pass


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
@pytest.mark.parametrize("technique", ADDED)
def test_adapters_of_a_half_precision_base_are_single_precision(family, technique, tmp_path):
    base = tiny(family, torch.bfloat16)
    before = logits(base)
    module = shaken(attach(base, technique, SETTINGS))
    assert {parameter.dtype for parameter in technique_parameters(module)} == {torch.float32}
    trained = logits(module)
    assert trained.dtype == torch.bfloat16
    save_technique(module, tmp_path)
    base = detach(module)
    assert torch.equal(logits(base), before)
    assert torch.equal(logits(load_technique(base, technique, SETTINGS, tmp_path)), trained)


@pytest.mark.parametrize("technique", ADDED)
def test_a_seed_fixes_the_first_weights(technique):
    modules = [attach(tiny("llama"), technique, SETTINGS, seed=seed) for seed in (1, 1, 2)]
    weights = [torch.cat([p.detach().flatten() for p in technique_parameters(module)]) for module in modules]
    assert torch.equal(weights[0], weights[1])
    # (IA)^3 begins with ones, whatever the seed.
    assert torch.equal(weights[0], weights[2]) == (technique is Technique.IA3)


@pytest.mark.parametrize("technique", ADDED)
def test_the_global_generator_is_left_alone(technique):
    model = tiny("llama")
    torch.manual_seed(8)
    expected = torch.rand(3)
    torch.manual_seed(8)
    attach(model, technique, SETTINGS)
    assert torch.equal(torch.rand(3), expected)


def words_before(model, rows):
    """The base on some words and then the text, computed as one plain sequence; the text's rows."""
    words = WORDS.expand(len(IDS), -1)
    inputs = inputs_of(model)
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            ids = torch.cat([words, IDS], dim=1)
            mask = torch.cat([torch.ones_like(words), inputs["attention_mask"]], dim=1)
            return model(input_ids=ids, attention_mask=mask).logits[:, rows:]
        inputs["input_ids"] = torch.cat([words, IDS], dim=1)
        inputs["attention_mask"] = torch.cat([torch.ones_like(words), inputs["attention_mask"]], dim=1)
        return model(**inputs).logits


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
def test_mistake_prompt_tuning_has_virtual_rows_before_the_texts_rows(family):
    """Virtual tokens that are given the embeddings of words act as those words before the text."""
    settings = TechniqueSettings(prompt_tokens=len(WORDS))
    base = tiny(family)
    expected = words_before(base, len(WORDS))
    module = attach(base, Technique.PROMPT, settings)
    with torch.no_grad():
        technique_parameters(module)[0].copy_(base.get_input_embeddings().weight[WORDS])
    rows = num_virtual_rows(module)
    assert rows == (0 if family == "t5" else len(WORDS))
    assert positions_taken(module) == len(WORDS)
    torch.testing.assert_close(logits(module)[:, rows:], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "opt", "t5"])
def test_mistake_p_tuning_has_virtual_rows_before_the_texts_rows(family, tmp_path):
    settings = TechniqueSettings(p_tuning_tokens=len(WORDS))
    base = tiny(family)
    expected = words_before(base, len(WORDS))
    save_technique(attach(base, Technique.P_TUNING, settings), tmp_path)
    module = load_technique(tiny(family), Technique.P_TUNING, settings, tmp_path)
    with torch.no_grad():
        [table] = technique_parameters(module)
        table.copy_(base.get_input_embeddings().weight[WORDS])
    rows = num_virtual_rows(module)
    assert rows == (0 if family == "t5" else len(WORDS))
    torch.testing.assert_close(logits(module)[:, rows:], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_has_no_rows_and_begins_as_the_keys_and_values_of_words(family):
    base = tiny(family)
    seed, count = 5, SETTINGS.prefix_tokens
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = torch.randint(base.config.vocab_size, (1, count)).expand(len(IDS), -1)
    inputs = inputs_of(base)
    mask = torch.cat([torch.ones_like(words), inputs["attention_mask"]], dim=1)
    with torch.no_grad():
        expected = base(input_ids=torch.cat([words, IDS], dim=1), attention_mask=mask).logits[:, count:]
    module = attach(base, Technique.PREFIX, SETTINGS, seed=seed)
    assert num_virtual_rows(module) == 0
    assert positions_taken(module) == count
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(logits(module)[real], expected[real], rtol=1e-4, atol=1e-4)


def test_a_prefix_of_an_encoder_decoder_stands_before_its_target():
    base = tiny("t5")
    target = torch.cat([torch.full((2, 1), EOS), IDS], dim=1)
    module = shaken(attach(base, Technique.PREFIX, SETTINGS))
    arguments = {"input_ids": IDS, "decoder_input_ids": target, "use_cache": False}
    with torch.no_grad():
        other_end = module(**{**arguments, "decoder_input_ids": torch.cat([target[:, :-1], target[:, :1]], 1)}).logits
        assert torch.equal(module(**arguments).logits[:, :-1], other_end[:, :-1])


@pytest.mark.parametrize("order", ["before", "after", "behind our back"])
def test_a_prefix_that_recomputing_would_drop_is_refused(order):
    model = tiny("llama")
    if order == "before":
        enable_gradient_checkpointing(model)
    context = pytest.raises(ModelError, match="exclude each other")
    with context if order == "before" else contextlib.nullcontext():
        module = attach(model, Technique.PREFIX, SETTINGS)
    if order == "after":
        with context:
            enable_gradient_checkpointing(module)
    if order == "behind our back":
        model.activation_checkpointing_enable()
        with context:
            module.train()(**inputs_of(module))
        logits(module.eval())


@pytest.mark.parametrize("technique", [t for t in ADDED if t is not Technique.PREFIX])
def test_recomputed_activations_give_the_same_gradients(technique):
    gradients = []
    for recompute in (False, True):
        module = shaken(attach(tiny("llama"), technique, SETTINGS)).train()
        if recompute:
            enable_gradient_checkpointing(module)
        module(**inputs_of(module)).loss.backward()
        gradients.append([parameter.grad for parameter in technique_parameters(module)])
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, recomputed, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("technique", [Technique.LORA, Technique.PREFIX, Technique.PROMPT, Technique.IA3])
def test_peft_itself_reads_what_is_stored(technique, tmp_path):
    module = shaken(attach(tiny("llama"), technique, SETTINGS))
    save_technique(module, tmp_path)
    by_peft = peft.PeftModel.from_pretrained(tiny("llama"), str(tmp_path))
    assert torch.equal(logits(by_peft), logits(module))


@pytest.mark.parametrize("technique", ADDED)
def test_an_adapter_of_another_shape_of_base_is_refused(technique, tmp_path):
    save_technique(attach(tiny("llama"), technique, SETTINGS), tmp_path)
    config = tiny_config("llama", layers=2)
    config.hidden_size, config.intermediate_size, config.num_key_value_heads = 36, 72, 3
    other = AutoModelForCausalLM.from_config(config).eval()
    before = logits(other)
    with pytest.raises(ModelError, match=r"(do|does) not fit"):
        load_technique(other, technique, SETTINGS, tmp_path)
    assert torch.equal(logits(other), before)


def test_mistake_an_adapter_name_that_does_not_exist_scores_the_base_model(tmp_path):
    """PEFT warns of weights by another name and goes on with fresh ones; here that is an error."""
    save_technique(shaken(attach(tiny("llama"), Technique.LORA, SETTINGS)), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    renamed = {name.replace("self_attn", "attention"): t for name, t in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(renamed, path)
    with pytest.raises(ModelError, match=r"does not fit.*weights differ"):
        load_peft_folder(tiny("llama"), tmp_path)
    with pytest.raises(ModelError, match="is not a PEFT folder"):
        load_peft_folder(tiny("llama"), tmp_path / "no-such-adapter")


def test_mistake_an_adapter_for_modules_that_the_base_does_not_have_is_refused(tmp_path):
    save_technique(attach(tiny("llama"), Technique.LORA, SETTINGS), tmp_path)
    with pytest.raises(ModelError, match="does not fit this base"):
        load_technique(tiny("bloom"), Technique.LORA, SETTINGS, tmp_path)


def test_an_adapter_is_not_taken_for_another_with_weights_of_the_same_names(tmp_path):
    save_technique(attach(tiny("llama"), Technique.PARALLEL, SETTINGS), tmp_path)
    with pytest.raises(ModelError, match="holds parallel of width 5, not adapter-p of width 5"):
        load_technique(tiny("llama"), Technique.ADAPTER_P, SETTINGS, tmp_path)


def test_an_adapter_for_the_other_kind_of_model_is_refused(tmp_path):
    save_technique(attach(tiny("t5"), Technique.PROMPT, SETTINGS), tmp_path)
    with pytest.raises(ModelError, match="is for SEQ_2_SEQ_LM models, this one is for CAUSAL_LM"):
        load_technique(tiny("llama"), Technique.PROMPT, SETTINGS, tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "bottleneck.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"bottleneck\.safetensors"):
        load_technique(tiny("llama"), Technique.PARALLEL, SETTINGS, tmp_path)
    (tmp_path / "demonstrations.npz").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"demonstrations\.npz"):
        load_technique(tiny("llama"), Technique.ICL, SETTINGS, tmp_path)


def test_the_settings_reach_peft(tmp_path):
    settings = TechniqueSettings(rank=3, alpha=12.0, dropout=0.1, target_modules=("q_proj",))
    module = attach(tiny("llama"), Technique.LORA, settings)
    save_technique(module, tmp_path)
    stored = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (stored["r"], stored["lora_alpha"], stored["lora_dropout"]) == (3, 12.0, 0.1)
    assert stored["target_modules"] == ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]
    assert num_trainable(module) == 2 * (3 * 48 + 48 * 3)


def joined(*rows):
    return torch.tensor([[token for row in rows for token in row]])


@pytest.mark.parametrize("begins", [True, False])
def test_demonstrations_are_read_before_a_text_and_bos_stands_once(begins, tmp_path):
    """The text's rows equal those of demonstrations and text as one plain sequence."""
    start = [BOS] if begins else []
    shots = [np.array([*start, 5, 6, EOS]), np.array([*start, 7, EOS])]
    text = [*start, 21, 22, 23]
    base = tiny("llama")
    plain = joined(start, [5, 6, EOS], [7, EOS], text[len(start) :])
    with torch.no_grad():
        expected = base(input_ids=plain).logits[:, 5:]
    module = attach_demonstrations(base, shots, BOS)
    assert num_virtual_rows(module) == positions_taken(module) == 5
    assert num_trainable(module) == 0
    assert technique_parameters(module) == []
    padded = {"input_ids": joined(text, [EOS]), "attention_mask": joined([1] * len(text), [0])}
    with torch.no_grad():
        found = module(**padded).logits[:, 5 : 5 + len(text)]
        labels = padded["input_ids"].masked_fill(padded["attention_mask"] == 0, -100)
        loss = module(**padded, labels=labels).loss
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    first = 4 + len(start)  # the row that predicts the text's first token: the last demonstration's end
    with torch.no_grad():
        rows = base(input_ids=plain).logits[0, first:-1]
    nats = torch.nn.functional.cross_entropy(rows, plain[0, first + 1 :])
    torch.testing.assert_close(loss, nats, rtol=1e-4, atol=1e-4)

    save_technique(module, tmp_path)
    again = load_technique(detach(module), Technique.ICL, SETTINGS, tmp_path)
    with torch.no_grad():
        assert torch.equal(again(**padded).logits[:, 5 : 5 + len(text)], found)
    with disabled(again), torch.no_grad():
        assert torch.equal(again(**padded).logits, base(**padded).logits)


def test_demonstrations_stand_before_an_encoders_input():
    base = tiny("t5")
    target = {"labels": IDS, "use_cache": False}
    with torch.no_grad():
        expected = base(input_ids=joined([5, 6, EOS, 1, 2]).expand(2, -1), **target).logits
        module = attach_demonstrations(base, [np.array([5, 6, EOS])], None)
        found = module(input_ids=joined([1, 2]).expand(2, -1), **target).logits
    assert num_virtual_rows(module) == 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_attached_is_refused():
    module = attach(tiny("llama"), Technique.LORA, SETTINGS)
    for again in (lambda: attach(module, Technique.PREFIX, SETTINGS), lambda: attach_demonstrations(module, [], None)):
        with pytest.raises(ModelError, match="adapted already"):
            again()
    with pytest.raises(InvalidValueError, match="demonstrations, not parameters"):
        attach(tiny("llama"), Technique.ICL, SETTINGS)
    with pytest.raises(InvalidValueError, match="at least one demonstration"):
        attach_demonstrations(tiny("llama"), [np.array([BOS])], BOS)


def test_an_unknown_technique_is_refused_with_those_there_are():
    assert [parse_technique(name) for name in ("ia3", "p-tuning")] == [Technique.IA3, Technique.P_TUNING]
    with pytest.raises(InvalidValueError, match=r"'lorra'.*full, lora, adapter-h.*icl"):
        parse_technique("lorra")


@pytest.mark.parametrize("wrong", [{"alpha": float("nan")}, {"dropout": 1.0}, {"rank": 0}, {"unknown": 1}])
def test_sizes_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValidationError):
        TechniqueSettings(**wrong)
