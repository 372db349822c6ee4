"""Targets of every kind: what they are taken for, which texts they know, and that base and adapter are right."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny_models import CONTEXT, save_tiny_model

from reticent.auditing.canaries.extraction import LocalExtractor
from reticent.auditing.targets.shadow_folders import open_shadow
from reticent.auditing.targets.targets import TargetKind, TargetOptions, open_target, target_kind
from reticent.errors import AuditError, InvalidValueError, ModelError, RunDirectoryError
from reticent.models.base import resolve_base_model
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate, encode
from reticent.training.adapted_folder import AdaptedFolder, write_adapted
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.techniques.registry import attach, technique_parameters

MEMBERS, HELDOUT = ["the first text", "a second one"], ["held out"]
TEMPLATE = TextTemplate(text="Note: {text}", max_tokens=40, add_eos=False)
SETTINGS = TechniqueSettings(rank=2, bottleneck=4, prompt_tokens=3)
TEXTS = ["some words", "and a few more of them"]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    save_tiny_model(folder / "llama", "llama", layers=2)
    save_tiny_model(folder / "other", "llama", layers=2, seed=1)
    save_tiny_model(folder / "wide", "gpt2", layers=2)
    return folder


def adapt(folder, base_folder, technique):
    """An adapted folder whose weights are moved at random instead of by training."""
    base = resolve_base_model(str(base_folder))
    module = attach(base.load(), technique, SETTINGS)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in technique_parameters(module):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return write_adapted(
        folder,
        module,
        base,
        technique=technique,
        settings=SETTINGS,
        template=TEMPLATE,
        member_hashes=[text_hash(text) for text in MEMBERS],
        heldout_hashes=[text_hash(text) for text in HELDOUT],
    )


@pytest.fixture(scope="module", params=[Technique.LORA, Technique.FULL, Technique.ADAPTER_P, Technique.PROMPT])
def adapted(request, bases, tmp_path_factory):
    return adapt(tmp_path_factory.mktemp("adapted") / request.param, bases / "llama", request.param)


def mean_logps(scorer):
    return [signals.logp.mean() for signals in scorer.score(TEXTS)]


def test_kinds_are_told_from_what_is_there(tmp_path, bases, adapted):
    assert target_kind(str(adapted.folder)) is TargetKind.ADAPTED
    assert target_kind(str(bases / "llama")) is TargetKind.MODEL
    assert target_kind("https://host/v1") is TargetKind.ENDPOINT
    assert target_kind("someone/some-model") is TargetKind.MODEL
    (tmp_path / "adapter_config.json").write_text("{}")
    assert target_kind(str(tmp_path)) is TargetKind.PEFT
    for name in ("manifest.json", "worlds.safetensors"):
        (tmp_path / name).write_text("{}")
    assert target_kind(str(tmp_path)) is TargetKind.RUN
    with pytest.raises(AuditError, match="--world"):
        open_target(str(tmp_path), TargetOptions())


def test_an_adapted_folder_knows_its_texts_and_its_reference_is_the_base_alone(bases, adapted):
    target = open_target(str(adapted.folder), TargetOptions())
    assert target.member_hashes == frozenset(map(text_hash, MEMBERS))
    assert target.heldout_hashes == frozenset(map(text_hash, HELDOUT))
    assert target.record["technique"] == adapted.technique.value
    plain = open_target(str(bases / "llama"), TargetOptions(template=TEMPLATE.model_dump()))
    np.testing.assert_allclose(mean_logps(target.reference), mean_logps(plain.scorer), atol=1e-5)
    assert np.abs(np.subtract(mean_logps(target.scorer), mean_logps(plain.scorer))).min() > 1e-3
    assert target.reference.fingerprint != target.scorer.fingerprint
    assert target.num_trained > 0
    assert isinstance(target.extractor, LocalExtractor)


def test_mistake_the_audited_text_is_not_the_trained_text(adapted):
    target = open_target(str(adapted.folder), TargetOptions())
    (trained,) = encode(target.scorer.tokenizer, AdaptedFolder.open(adapted.folder).template, ["a text"])
    (audited,) = target.scorer.encode(["a text"])
    np.testing.assert_array_equal(audited.token_ids, trained.token_ids)
    assert target.template == TEMPLATE


def test_a_template_is_overridden_field_by_field(adapted):
    target = open_target(str(adapted.folder), TargetOptions(template={"max_tokens": 9}))
    assert target.template == TEMPLATE.model_copy(update={"max_tokens": 9})
    with pytest.raises(InvalidValueError, match="template: text"):
        open_target(str(adapted.folder), TargetOptions(template={"text": "no place"}))


def test_two_adapters_over_one_base_share_the_reference_and_nothing_else(bases, tmp_path):
    first, second = (adapt(tmp_path / t, bases / "llama", t) for t in (Technique.LORA, Technique.IA3))
    one, two = (open_target(str(folder.folder), TargetOptions()) for folder in (first, second))
    assert one.reference.fingerprint == two.reference.fingerprint
    assert one.scorer.fingerprint != two.scorer.fingerprint


def test_an_adapter_for_another_base_is_refused_naming_both(bases, adapted):
    with pytest.raises(RunDirectoryError, match="on another base") as caught:
        open_target(str(adapted.folder), TargetOptions(model=str(bases / "other")))
    message = str(caught.value)
    assert resolve_base_model(str(bases / "other")).content_hash in message
    assert resolve_base_model(str(bases / "llama")).content_hash in message


def test_a_peft_folder_finds_its_base_or_is_told(bases, tmp_path):
    adapted = adapt(tmp_path / "lora", bases / "llama", Technique.LORA)
    folder = shutil.copytree(adapted.weights, tmp_path / "peft")
    target = open_target(str(folder), TargetOptions(model=str(bases / "llama"), template=TEMPLATE.model_dump()))
    whole = open_target(str(adapted.folder), TargetOptions())
    assert target.kind is TargetKind.PEFT
    assert target.member_hashes is None
    np.testing.assert_allclose(mean_logps(target.scorer), mean_logps(whole.scorer), atol=1e-6)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(bases / "llama")}))
    np.testing.assert_allclose(
        mean_logps(open_target(str(folder), TargetOptions(template=TEMPLATE.model_dump())).scorer),
        mean_logps(whole.scorer),
        atol=1e-6,
    )
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(ModelError, match="does not say which base model it is for"):
        open_target(str(folder), TargetOptions())


@pytest.mark.parametrize("technique", [Technique.ADAPTER_H, Technique.ADAPTER_P, Technique.PARALLEL])
def test_a_folder_of_bottleneck_adapters_alone_is_audited_over_the_base_that_is_named(bases, tmp_path, technique):
    adapted = adapt(tmp_path / technique, bases / "llama", technique)
    options = TargetOptions(model=str(bases / "llama"), template=TEMPLATE.model_dump())
    target, whole = open_target(str(adapted.weights), options), open_target(str(adapted.folder), TargetOptions())
    assert target.kind is TargetKind.BOTTLENECK
    assert target.record["adapter"] == technique
    assert target.member_hashes is None
    np.testing.assert_allclose(mean_logps(target.scorer), mean_logps(whole.scorer), atol=1e-6)
    np.testing.assert_allclose(mean_logps(target.reference), mean_logps(whole.reference), atol=1e-6)
    with pytest.raises(ModelError, match="which base model it is for; name it with --model"):
        open_target(str(adapted.weights), TargetOptions())
    with pytest.raises(ModelError, match="do not fit this base"):
        open_target(str(adapted.weights), TargetOptions(model=str(bases / "wide")))


def test_a_peft_folder_on_a_base_of_another_shape_is_refused(bases, tmp_path):
    adapted = adapt(tmp_path / "lora", bases / "llama", Technique.LORA)
    with pytest.raises(ModelError, match="does not fit this base"):
        open_target(str(adapted.weights), TargetOptions(model=str(bases / "wide")))


def test_texts_are_cut_to_the_context_and_the_report_says_so(bases):
    target = open_target(str(bases / "llama"), TargetOptions())
    assert target.template.max_tokens == CONTEXT
    assert "texts are cut to 96 tokens" in target.warnings[0]
    (signals,) = target.scorer.score(["x" * 500])
    assert signals is not None


def test_a_model_has_no_reference_unless_one_is_named_and_it_reads_what_the_target_reads(bases):
    assert open_target(str(bases / "llama"), TargetOptions()).reference is None
    options = TargetOptions(reference=str(bases / "other"), template=TEMPLATE.model_dump())
    target = open_target(str(bases / "llama"), options)
    assert target.reference.template == target.template
    assert target.reference_record["base"] == str(bases / "other")


def test_a_shadow_reads_as_the_target_does_and_knows_its_texts(bases, tmp_path):
    folder = adapt(tmp_path / "shadow", bases / "llama", Technique.LORA).folder
    target = open_target(str(bases / "llama"), TargetOptions(template={"max_tokens": 7}))
    scorer, members = open_shadow(str(folder), target)
    assert scorer.template == target.template
    assert members == frozenset(map(text_hash, MEMBERS))
    with pytest.raises(AuditError, match="nothing says what it was trained on"):
        open_shadow(str(bases / "other"), target)


def test_a_bare_adapter_warns_of_what_its_folder_does_not_say(bases, tmp_path):
    adapted = adapt(tmp_path / "lora", bases / "llama", Technique.LORA)
    folder = str(shutil.copytree(adapted.weights, tmp_path / "peft"))

    def warnings(**template):
        options = TargetOptions(model=str(bases / "llama"), template=template)
        return [warning for warning in open_target(folder, options).warnings if "does not say" in warning]

    [neither] = warnings()
    assert "closed by an end token" in neither
    assert neither.endswith("say it with --max-tokens and --eos or --no-eos")
    [half] = warnings(max_tokens=16)
    assert "cut at 16 tokens" in half
    assert half.endswith("say it with --eos or --no-eos")
    assert warnings(max_tokens=16, add_eos=False) == []
    assert open_target(str(adapted.folder), TargetOptions()).warnings == ()
