"""One adapted model on disk: whole or not there, bound to its base, and exact about who is a member."""

import json
import shutil

import numpy as np
import pytest
import torch
from tiny_models import BOS, EOS, byte_tokenizer, save_tiny_model

from reticent.errors import InvalidValueError, OutputExistsError, RunDirectoryError
from reticent.models.base import resolve_base_model
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate, encode
from reticent.training.adapted_folder import (
    ADAPT_NAME,
    AdaptedFolder,
    CountsRecord,
    EpochRecord,
    PrivacyRecord,
    write_adapted,
)
from reticent.training.single_settings import SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import (
    Technique,
    TechniqueSettings,
    attach,
    attach_demonstrations,
    num_trainable,
    technique_parameters,
)

MEMBERS = ["first text", "second text", "a third"]
HELDOUT = ["held out", "also held out"]
SETTINGS = TechniqueSettings(rank=2, bottleneck=5)
TEMPLATE = TextTemplate(text="Note: {text}", max_tokens=14, add_eos=False)
IDS = torch.tensor([[1, 2, 3, 7, 9]])


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Saved models by family, and one LLaMA of other weights."""
    folder = tmp_path_factory.mktemp("bases")
    for name, family, seed in (("llama", "llama", 0), ("other", "llama", 1), ("t5", "t5", 0)):
        save_tiny_model(folder / name, family, layers=2, seed=seed)
    return folder


def logits(module):
    target = {"decoder_input_ids": IDS} if module.config.is_encoder_decoder else {}
    with torch.no_grad():
        return module(input_ids=IDS, attention_mask=torch.ones_like(IDS), use_cache=False, **target).logits


def adapted_module(base, technique):
    model = base.load()
    if technique is Technique.ICL:
        begin = None if model.config.is_encoder_decoder else BOS
        return attach_demonstrations(model, [np.array([BOS, 5, EOS]), np.array([BOS, 6, 7, EOS])], begin)
    module = attach(model, technique, SETTINGS)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in technique_parameters(module):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module


def write(folder, base, technique=Technique.ADAPTER_P, module=None, **changes):
    arguments = {
        "technique": technique,
        "settings": SETTINGS,
        "template": TEMPLATE,
        "member_hashes": [text_hash(text) for text in MEMBERS],
        "heldout_hashes": [text_hash(text) for text in HELDOUT],
    }
    return write_adapted(folder, module or adapted_module(base, technique), base, **(arguments | changes))


@pytest.fixture
def adapted(tmp_path, bases):
    return write(tmp_path / "out", resolve_base_model(str(bases / "llama")))


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("technique", Technique)
def test_every_technique_is_the_same_model_after_a_round_trip(tmp_path, bases, family, technique):
    base = resolve_base_model(str(bases / family))
    module = adapted_module(base, technique)
    write(tmp_path / "out", base, technique, module)
    opened = AdaptedFolder.open(tmp_path / "out")
    loaded, tokenizer = opened.load()
    assert torch.equal(logits(loaded), logits(module))
    assert tokenizer("é")["input_ids"] == byte_tokenizer()("é")["input_ids"]
    assert opened.technique is technique
    assert opened.manifest.counts.trained_parameters == num_trainable(module)
    assert num_trainable(loaded) == 0
    assert opened.manifest.base.class_name == type(base.load()).__name__


def test_members_and_held_out_texts_are_listed_by_hash_in_order(adapted):
    opened = AdaptedFolder.open(adapted.folder)
    assert opened.member_hashes == tuple(text_hash(text) for text in MEMBERS)
    assert opened.heldout_hashes == tuple(text_hash(text) for text in HELDOUT)
    assert (opened.manifest.counts.members, opened.manifest.counts.heldout) == (3, 2)
    everything = b"".join(path.read_bytes() for path in adapted.folder.rglob("*") if path.is_file())
    assert not any(text.encode() in everything for text in MEMBERS + HELDOUT)


def test_mistake_audited_text_is_not_the_trained_text(adapted):
    """The template that comes back from the folder encodes as the one that went in, and not as the default does."""
    texts = [*MEMBERS, "a text that is too long to fit"]
    again = AdaptedFolder.open(adapted.folder).template
    encodings = [
        [text.token_ids.tolist() for text in encode(byte_tokenizer(), template, texts)]
        for template in (TEMPLATE, again, TextTemplate())
    ]
    assert again == TEMPLATE
    assert encodings[0] == encodings[1]
    assert encodings[0] != encodings[2]


def test_mistake_rows_held_out_are_counted_as_members(tmp_path, bases):
    base = resolve_base_model(str(bases / "llama"))
    with pytest.raises(InvalidValueError, match="both trained on and held out"):
        write(tmp_path / "out", base, heldout_hashes=[text_hash(MEMBERS[1])])
    for wrong in ([], ["second text"], [text_hash("x").upper()]):
        with pytest.raises(InvalidValueError) as caught:
            write(tmp_path / "out", base, member_hashes=wrong)
        assert "second text" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_mistake_an_adapter_for_another_base_is_refused_naming_both_hashes(adapted, bases):
    right, wrong = (resolve_base_model(str(bases / name)) for name in ("llama", "other"))
    for attempt in (lambda: adapted.load(wrong), lambda: adapted.base(str(bases / "other"))):
        with pytest.raises(RunDirectoryError) as caught:
            attempt()
        assert right.content_hash in str(caught.value)
        assert wrong.content_hash in str(caught.value)


def test_the_base_may_have_moved(tmp_path, bases, adapted):
    moved = resolve_base_model(str(shutil.copytree(bases / "llama", tmp_path / "moved")))
    assert torch.equal(logits(adapted.load(moved)[0]), logits(adapted.load()[0]))


def test_a_fine_tuned_model_stands_alone(tmp_path, bases):
    copied = shutil.copytree(bases / "llama", tmp_path / "base")
    base = resolve_base_model(str(copied))
    expected = logits(adapted_module(base, Technique.FULL))
    opened = write(tmp_path / "out", base, Technique.FULL)
    shutil.rmtree(copied)
    module, tokenizer = opened.load()
    assert torch.equal(logits(module), expected)
    assert tokenizer.eos_token_id == EOS
    assert resolve_base_model(str(opened.weights)).load_tokenizer().eos_token_id == EOS


def test_the_type_is_the_one_trained_in_unless_told_otherwise(tmp_path, bases):
    base = resolve_base_model(str(bases / "llama"))
    opened = write(tmp_path / "out", base, training=SingleTrainingSettings(dtype="bfloat16"))
    assert logits(opened.load()[0]).dtype == torch.bfloat16
    assert logits(opened.load(dtype=torch.float32)[0]).dtype == torch.float32


def test_how_it_was_made_is_recorded(tmp_path, bases):
    records = {
        "split": SplitSettings(heldout_fraction=0.5),
        "training": SingleTrainingSettings(epochs=2),
        "dp": PrivacyRecord(
            epsilon=3.5,
            delta=1e-5,
            accountant="PRV",
            noise_multiplier=0.9,
            max_gradient_norm=1.0,
            sample_rate=0.1,
            num_steps=30,
        ),
        "epochs": (EpochRecord(training=2.5, validation=2.7), EpochRecord()),
    }
    base = resolve_base_model(str(bases / "llama"))
    counts = CountsRecord(members=3, heldout=2, validation=4, tokens=30)
    manifest = write(tmp_path / "out", base, counts=counts, **records).manifest
    assert {name: getattr(manifest, name) for name in records} == records
    assert manifest.counts.validation == 4
    assert {"torch", "peft", "reticent"} <= manifest.versions.keys()
    content = json.loads((tmp_path / "out" / ADAPT_NAME).read_text())
    assert content["dp"]["accountant"] == "PRV"
    assert content["template"]["add_eos"] is False


@pytest.mark.parametrize("name", ["members.txt", "heldout.txt", "weights/bottleneck.safetensors"])
def test_a_changed_or_missing_file_is_named(adapted, name):
    path = adapted.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunDirectoryError, match=f"{name}.*SHA-256"):
        AdaptedFolder.open(adapted.folder)
    path.unlink()
    with pytest.raises(RunDirectoryError, match=f"{name} is missing"):
        AdaptedFolder.open(adapted.folder)


def edit(folder, change):
    path = folder / ADAPT_NAME
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(schema_version=99), "schema 99.*upgrade"),
        (lambda c: c.pop("technique"), "damaged"),
        (lambda c: c.update(technique="lorra"), "damaged"),
        (lambda c: c.update(surprise=1), "damaged"),
        (lambda c: c["files"].update({"../outside": "0" * 64}), "damaged.*files of an adapted model"),
        (lambda c: c["files"].pop("members.txt"), "damaged.*files of an adapted model"),
        (lambda c: c["counts"].update(members=4), "counts other lists"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(adapted, change, message):
    edit(adapted.folder, change)
    with pytest.raises(RunDirectoryError, match=message):
        AdaptedFolder.open(adapted.folder)


def test_half_made_is_not_made_and_made_is_not_overwritten(adapted, bases):
    base = resolve_base_model(str(bases / "llama"))
    with pytest.raises(OutputExistsError, match="choose another"):
        write(adapted.folder, base)
    (adapted.folder / ADAPT_NAME).unlink()
    with pytest.raises(RunDirectoryError, match="not a finished adapted model"):
        AdaptedFolder.open(adapted.folder)
    (adapted.folder / "weights" / "left over by a kill").write_text("x")
    again = write(adapted.folder, base)
    assert sorted(path.name for path in again.weights.iterdir()) == ["bottleneck.safetensors"]


def test_the_same_training_makes_the_same_files(tmp_path, bases):
    base = resolve_base_model(str(bases / "llama"))
    for technique in (Technique.LORA, Technique.PARALLEL, Technique.PREFIX, Technique.ICL):
        first, *others = (write(tmp_path / f"{technique}{i}", base, technique).manifest.files for i in range(4))
        assert others == [first] * 3
