"""One adapted model: trained as a plain loop would, resumed to the same bytes, its members written down right."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from killing import killed_at
from small_adaptations import SMALL, Recorder, same_bytes, small_request, write_texts
from tiny_models import CONTEXT, build_tiny_model, byte_tokenizer, save_tiny_model
from torch import nn

from reticent.errors import (
    CorpusError,
    InvalidValueError,
    ModelError,
    OutputExistsError,
    RunDirectoryError,
    TrainingError,
)
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.template import TextTemplate, collate, encode
from reticent.training import single_training, trainer
from reticent.training.adapted_folder import AdaptedFolder
from reticent.training.batches import make_batches
from reticent.training.dpsgd import epsilon_spent
from reticent.training.schedule import learning_rate_at
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import attach
from reticent.training.trainer import adapt

DRIVER = Path(__file__).with_name("adapt_until_killed.py")
ICL_SPLIT = SplitSettings(heldout_count=4, demonstrations=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("corpus") / "notes.jsonl")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function from a family to a saved tiny model of it, made once."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def folder_of(family):
        if family not in made:
            made[family] = root / family
            save_tiny_model(made[family], family, layers=2)
        return made[family]

    return folder_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus, folders):
    """An adaptation that was never interrupted. Tests do not change it."""
    out = tmp_path_factory.mktemp("adapted") / "whole"
    adapt(small_request(corpus, folders("llama"), out), Recorder())
    return out


@pytest.mark.parametrize("technique", list(Technique))
@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_every_technique_learns_its_members_and_is_read_back(family, technique, corpus, folders, tmp_path):
    is_icl = technique is Technique.ICL
    request = small_request(
        corpus,
        folders(family),
        tmp_path / "out",
        technique=technique,
        settings=TechniqueSettings(**{**SMALL.model_dump(), "dropout": 0.0}),
        split=ICL_SPLIT if is_icl else SplitSettings(heldout_count=4),
        training=SingleTrainingSettings(epochs=8, batch_size=4, learning_rate=3e-2 if technique != "full" else 1e-3),
    )
    progress = Recorder()
    adapted = adapt(request, progress)
    assert progress.done == progress.expected
    module, tokenizer = adapted.load()
    if is_icl:
        assert (adapted.manifest.counts.members, adapted.manifest.epochs, adapted.manifest.training) == (2, (), None)
        return
    losses = [epoch.training for epoch in adapted.manifest.epochs]
    assert losses[-1] < losses[0]
    # The stored model has what the last epoch had learnt: its loss on the members is below the base's.
    texts = {text_hash(record.text): record.text for record in read_corpus(corpus).records}
    members = [texts[value] for value in adapted.member_hashes]
    batch = collate(encode(tokenizer, adapted.template, members, is_encoder_decoder=family == "t5"), 0)
    base = build_tiny_model(family, layers=2)
    with torch.no_grad():
        assert module(**batch).loss < base(**batch).loss


@pytest.mark.parametrize(("family", "technique"), [("llama", Technique.LORA), ("t5", Technique.ADAPTER_H)])
def test_training_is_that_of_a_plain_loop(family, technique, corpus, folders, tmp_path):
    settings = TechniqueSettings(rank=2, bottleneck=4)
    request = small_request(corpus, folders(family), tmp_path / "out", technique=technique, settings=settings)
    adapted = adapt(request, Recorder())

    records = {text_hash(record.text): record.text for record in read_corpus(corpus).records}
    encoded = encode(
        byte_tokenizer(),
        request.template,
        [records[value] for value in adapted.member_hashes],
        is_encoder_decoder=family == "t5",
    )
    module = attach(build_tiny_model(family, layers=2), technique, settings, seed=0).train()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.0)
    lengths = np.array([len(text.token_ids) for text in encoded])
    losses = []
    for epoch in range(2):
        nats = tokens = 0.0
        for position, records_of_step in enumerate(make_batches(lengths, 4, epoch, 0)):
            # A mean over all tokens is what `transformers` computes too.
            loss = module(**collate([encoded[record] for record in records_of_step], 0), use_cache=False).loss
            scored = sum(encoded[record].num_scored for record in records_of_step)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.param_groups[0]["lr"] = learning_rate_at(3 * epoch + position, 6, 1e-2)
            optimiser.step()
            nats, tokens = nats + loss.item() * scored, tokens + scored
        losses.append(nats / tokens)
    trained, _ = adapted.load()
    state = trained.state_dict()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert torch.allclose(state[name], parameter, rtol=1e-3, atol=1e-5), name
    assert [epoch.training for epoch in adapted.manifest.epochs] == pytest.approx(losses, rel=1e-4)


def test_the_same_request_gives_the_same_bytes(corpus, folders, finished, tmp_path):
    torch.manual_seed(123)
    torch.rand(7)
    before = torch.get_rng_state()
    adapt(small_request(corpus, folders("llama"), tmp_path / "again"), Recorder())
    assert same_bytes(tmp_path / "again", finished)
    # Nor does it draw from the random state of whoever calls it.
    assert torch.equal(torch.get_rng_state(), before)
    other = small_request(
        corpus, folders("llama"), tmp_path / "other", training=SingleTrainingSettings(epochs=2, batch_size=4, seed=1)
    )
    adapt(other, Recorder())
    assert not same_bytes(tmp_path / "other", finished)


class InterruptsAt(Recorder):
    """Ctrl-C after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def advance(self, num_tokens: int) -> None:
        super().advance(num_tokens)
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("steps", [1, 3, 5, 6])
def test_after_ctrl_c_a_training_resumes_to_the_same_bytes(steps, corpus, folders, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_seconds_between_saves", lambda _: 0.0)
    request = small_request(corpus, folders("llama"), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        adapt(request, InterruptsAt(steps))
    with pytest.raises(RunDirectoryError, match="--resume"):
        AdaptedFolder.open(request.out)
    with pytest.raises(OutputExistsError, match="--resume"):
        adapt(request, Recorder())
    progress = Recorder()
    adapt(request, progress, resume=True)
    assert same_bytes(request.out, finished)
    assert progress.done == progress.expected


@pytest.mark.parametrize(
    ("technique", "dtype"), [(Technique.FULL, "bfloat16"), (Technique.P_TUNING, "float32"), (Technique.IA3, "bfloat16")]
)
def test_so_do_other_techniques_and_types(technique, dtype, corpus, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_seconds_between_saves", lambda _: 0.0)
    training = SingleTrainingSettings(epochs=2, batch_size=4, learning_rate=1e-2, dtype=dtype)
    stopped, whole = (
        small_request(corpus, folders("gpt2"), tmp_path / name, technique=technique, training=training)
        for name in ("stopped", "whole")
    )
    adapt(whole, Recorder())
    with pytest.raises(KeyboardInterrupt):
        adapt(stopped, InterruptsAt(4))
    adapt(stopped, Recorder(), resume=True)
    assert same_bytes(stopped.out, whole.out)


# The writes of an adaptation, in order: 1 the request; 2 to 7 a checkpoint a step; 8 and 9 the adapter and its
# settings; 10 and 11 the two lists; 12 adapt.json.
WRITES = 12
MOMENTS = [
    (1, "before"),
    (1, "after"),
    (3, "before"),
    (4, "after"),
    (7, "after"),
    (9, "before"),
    (11, "after"),
    (12, "before"),
    (12, "after"),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory, corpus, folders):
    return killed_at(DRIVER, tmp_path_factory.mktemp("killed"), MOMENTS, corpus, folders("llama"))


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment[1]}-write-{moment[0]}")
def test_killed_at_any_write_a_training_resumes_to_the_same_bytes(moment, killed, corpus, folders, finished):
    out = killed[moment]
    adapt(small_request(corpus, folders("llama"), out), Recorder(), resume=True)
    assert same_bytes(out, finished)


def test_the_moments_cover_the_whole_training(corpus, folders, tmp_path, monkeypatch):
    moved = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: moved.append(target.name) or replace(self, target))
    monkeypatch.setattr(trainer, "_seconds_between_saves", lambda _: 0.0)
    adapt(small_request(corpus, folders("llama"), tmp_path / "out"), Recorder())
    assert moved[:7] == ["request.json", *["checkpoint"] * 6]
    assert moved[-3:] == ["members.txt", "heldout.txt", "adapt.json"]
    assert len(moved) == WRITES


def test_rows_held_out_for_validation_are_not_members(corpus, folders, finished):
    adapted = AdaptedFolder.open(finished)
    counts = adapted.manifest.counts
    assert (counts.members, counts.heldout, counts.validation) == (12, 4, 4)
    everyone = {text_hash(record.text) for record in read_corpus(corpus).records}
    members, heldout = set(adapted.member_hashes), set(adapted.heldout_hashes)
    assert not members & heldout
    assert len(everyone - members - heldout) == 4
    assert all(epoch.validation is not None for epoch in adapted.manifest.epochs)


def test_only_members_move_the_weights(corpus, folders, finished, tmp_path):
    adapted = AdaptedFolder.open(finished)
    members = set(adapted.member_hashes)
    changed = tmp_path / "changed.jsonl"
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    for number, row in enumerate(rows):
        if text_hash(row["text"]) not in members:
            row["text"] = f"{number} is quite another text in this place"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = adapt(small_request(changed, folders("llama"), tmp_path / "out"), Recorder())
    assert again.member_hashes == adapted.member_hashes
    assert again.heldout_hashes != adapted.heldout_hashes
    name = "adapter_model.safetensors"
    assert (again.weights / name).read_bytes() == (adapted.weights / name).read_bytes()


def test_near_duplicates_are_told_and_stay_together(corpus, folders, tmp_path):
    twins = tmp_path / "twins.jsonl"
    first = json.loads(corpus.read_text().splitlines()[0])["text"]
    twins.write_text(corpus.read_text() + json.dumps({"text": first.upper() + "!"}) + "\n")
    progress = Recorder()
    adapted = adapt(small_request(twins, folders("llama"), tmp_path / "out"), progress)
    assert any("1 units merged" in line for line in progress.notes)
    sides = [set(adapted.member_hashes), set(adapted.heldout_hashes)]
    pair = {text_hash(first), text_hash(first.upper() + "!")}
    assert all(not (pair & side) or pair <= side for side in sides)
    assert not any(first in line for line in progress.notes)


@pytest.mark.parametrize("template", ["{text}", "Letter: {text}"])
def test_texts_that_train_alike_once_cut_stand_on_one_side(corpus, folders, tmp_path, template):
    alike = [f"begins with the same words, and ends with {end}" for end in ("hope", "fear", "sleep", "rest")]
    path = tmp_path / "alike.jsonl"
    path.write_text(corpus.read_text() + "".join(json.dumps({"text": text}) + "\n" for text in alike))
    progress = Recorder()
    request = small_request(
        path, folders("llama"), tmp_path / "out", template=TextTemplate(text=template, max_tokens=32)
    )
    adapted = adapt(dataclasses.replace(request, split=SplitSettings(heldout_fraction=0.5)), progress)
    sides = [set(adapted.member_hashes), set(adapted.heldout_hashes)]
    assert [len(side & set(map(text_hash, alike))) for side in sides] in ([4, 0], [0, 4])
    assert (adapted.manifest.counts.merged_units, adapted.manifest.counts.merged_once_cut) == (3, 3)
    assert any("3 of them only as they are cut" in note for note in progress.notes)


def test_full_finetuning_in_bfloat16_adds_up_steps_too_small_for_it(corpus, folders, tmp_path):
    # A step of 3e-5 is below half a unit in the last place of most weights around 0.15, so it would round to nothing.
    training = SingleTrainingSettings(epochs=12, batch_size=4, learning_rate=3e-5, dtype="bfloat16")
    request = small_request(corpus, folders("llama"), tmp_path / "out", technique=Technique.FULL, training=training)
    adapted = adapt(request, Recorder())
    stored = safetensors.torch.load_file(adapted.weights / "model.safetensors")
    base = {name: p.to(torch.bfloat16) for name, p in build_tiny_model("llama", layers=2).named_parameters()}
    moved = [(stored[name] != base[name]).float().mean() for name in stored if stored[name].dim() == 2]
    assert all(tensor.dtype == torch.bfloat16 for tensor in stored.values())
    assert min(moved) > 0.2


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_gradient_checkpointing_changes_nothing_but_memory(family, corpus, folders, tmp_path):
    losses = []
    for wanted in (False, True):
        # Dropout is drawn again alike when activations are computed again.
        training = SingleTrainingSettings(epochs=3, batch_size=4, learning_rate=1e-2, gradient_checkpointing=wanted)
        request = small_request(corpus, folders(family), tmp_path / str(wanted), training=training)
        epochs = adapt(request, Recorder()).manifest.epochs
        losses.append([loss for epoch in epochs for loss in (epoch.training, epoch.validation)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != pytest.approx([losses[0][0]] * 6, rel=1e-2)


def test_a_loss_that_is_no_number_stops_the_training(corpus, tmp_path):
    folder = tmp_path / "broken"
    model = build_tiny_model("llama", layers=1)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("inf"))
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    with pytest.raises(TrainingError, match=r"not finite in step 1 of 6 .*lower --learning-rate"):
        adapt(small_request(corpus, folder, tmp_path / "out"), Recorder())
    assert not (tmp_path / "out" / "adapt.json").exists()


def test_a_gradient_that_is_no_number_stops_the_training_too(corpus, folders, tmp_path, monkeypatch):
    backward = single_training.MeanGradients.backward

    def broken(self, step):
        loss = backward(self, step)
        if step == 4:
            next(p for p in self._loss._module.parameters() if p.grad is not None).grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(single_training.MeanGradients, "backward", broken)
    with pytest.raises(TrainingError, match="in step 5 of 6"):
        adapt(small_request(corpus, folders("llama"), tmp_path / "out"), Recorder())


@pytest.mark.parametrize("technique", [Technique.LORA, Technique.PREFIX, Technique.FULL])
def test_private_training_says_what_it_reached_and_nothing_of_its_members(technique, corpus, folders, tmp_path):
    pytest.importorskip("opacus")
    privacy = PrivacySettings(epsilon=6.0, delta=1e-2, records_at_once=3)
    request = small_request(corpus, folders("llama"), tmp_path / "out", technique=technique, privacy=privacy)
    progress = Recorder()
    adapted = adapt(request, progress)
    dp = adapted.manifest.dp
    assert 5.9 < dp.epsilon <= 6.0
    assert "dp-accounting" in dp.accountant
    assert dp.epsilon == epsilon_spent(dp.noise_multiplier, dp.delta, dp.sample_rate, dp.num_steps)
    assert [epoch.training for epoch in adapted.manifest.epochs] == [None, None]
    assert all(epoch.validation is not None for epoch in adapted.manifest.epochs)
    # Equal steps: the progress does not tell how many records were sampled.
    assert progress.done == progress.expected
    assert progress.expected % 6 == 0
    adapted.load()


def test_a_privacy_that_cannot_be_meant_is_refused_or_told_before_training(corpus, folders, tmp_path):
    pytest.importorskip("opacus")
    # 4 of 20 records are held out and 4 validate, so 12 are members.
    request = small_request(
        corpus, folders("llama"), tmp_path / "out", privacy=PrivacySettings(epsilon=6.0, delta=1 / 12)
    )
    with pytest.raises(InvalidValueError, match="dp-delta must be below one over the 12 members"):
        adapt(request, Recorder())
    assert not (tmp_path / "out").exists()
    progress = Recorder()
    adapted = adapt(dataclasses.replace(request, privacy=PrivacySettings(epsilon=1e9, delta=1e-2)), progress)
    assert adapted.manifest.dp.noise_multiplier == 0.25
    assert any("never below 0.25" in note and "not the 1e+09 asked for" in note for note in progress.notes)


def test_private_training_resumes_with_fresh_noise(corpus, folders, tmp_path, monkeypatch):
    pytest.importorskip("opacus")
    monkeypatch.setattr(trainer, "_seconds_between_saves", lambda _: 0.0)
    request = small_request(
        corpus, folders("llama"), tmp_path / "out", privacy=PrivacySettings(epsilon=6.0, delta=1e-2)
    )
    with pytest.raises(KeyboardInterrupt):
        adapt(request, InterruptsAt(3))
    assert adapt(request, Recorder(), resume=True).manifest.dp.epsilon <= 6.0
    finished = adapt(request, Recorder(), resume=True)
    assert finished.manifest.dp.epsilon <= 6.0


def test_a_finished_folder_is_left_as_it_is(corpus, folders, finished):
    progress = Recorder()
    adapt(small_request(corpus, folders("llama"), finished), progress, resume=True)
    assert progress.notes[-1].endswith("is already finished")
    with pytest.raises(OutputExistsError, match="finished adapted model"):
        adapt(small_request(corpus, folders("llama"), finished), Recorder())
    other = SingleTrainingSettings(epochs=3, batch_size=4, learning_rate=1e-2)
    with pytest.raises(RunDirectoryError, match=r"made with another training\.epochs"):
        adapt(small_request(corpus, folders("llama"), finished, training=other), Recorder(), resume=True)


def test_a_begun_folder_goes_on_with_the_same_request_alone(corpus, folders, tmp_path):
    request = small_request(corpus, folders("llama"), tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        adapt(request, InterruptsAt(2))
    fewer = write_texts(tmp_path / "fewer.jsonl", 19)
    for changed, words in (
        ({"settings": SMALL.model_copy(update={"rank": 3})}, r"settings\.rank"),
        ({"template": TextTemplate(text="Note: {text}", max_tokens=24)}, r"template\.text"),
        ({"corpus": fewer}, "members"),
    ):
        with pytest.raises(RunDirectoryError, match=f"begun with another {words}"):
            adapt(dataclasses.replace(request, **changed), Recorder(), resume=True)


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        ({"technique": Technique.ICL}, InvalidValueError, "needs a number of demonstrations"),
        ({"split": ICL_SPLIT}, InvalidValueError, "not for lora"),
        (
            {"technique": Technique.ICL, "split": SplitSettings(demonstrations=2, val_fraction=0.1)},
            InvalidValueError,
            "no validation loss",
        ),
        (
            {"technique": Technique.IA3, "privacy": PrivacySettings(epsilon=1.0, delta=1e-3)},
            InvalidValueError,
            "not for ia3",
        ),
        (
            {"technique": Technique.PREFIX, "training": SingleTrainingSettings(gradient_checkpointing=True)},
            ModelError,
            "exclude each other",
        ),
        ({"template": TextTemplate(encoder_input="read")}, InvalidValueError, "no encoder"),
        ({"device": "nowhere"}, InvalidValueError, "device 'nowhere'"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(overrides, error, words, corpus, folders, tmp_path):
    with pytest.raises(error, match=words):
        adapt(small_request(corpus, folders("llama"), tmp_path / "out", **overrides), Recorder())
    assert not (tmp_path / "out").exists()


def test_virtual_tokens_and_demonstrations_leave_texts_their_room(corpus, folders, tmp_path):
    longest = TextTemplate(max_tokens=CONTEXT)
    prompt = small_request(corpus, folders("gpt2"), tmp_path / "a", technique=Technique.PROMPT, template=longest)
    assert adapt(prompt, Recorder()).template.max_tokens == CONTEXT - SMALL.prompt_tokens
    icl = small_request(
        corpus, folders("gpt2"), tmp_path / "b", technique=Technique.ICL, template=longest, split=ICL_SPLIT
    )
    with pytest.raises(InvalidValueError, match="fewer demonstrations"):
        adapt(icl, Recorder())
    many = SMALL.model_copy(update={"prefix_tokens": CONTEXT - 1})
    with pytest.raises(InvalidValueError, match="fewer virtual tokens"):
        adapt(
            small_request(corpus, folders("gpt2"), tmp_path / "c", technique=Technique.PREFIX, settings=many),
            Recorder(),
        )


def test_a_text_with_nothing_to_predict_is_named_by_its_place(folders, tmp_path):
    corpus = tmp_path / "short.jsonl"
    corpus.write_text('{"text": "long enough"}\n{"text": "x"}\n{"text": "also long enough"}\n')
    request = small_request(
        corpus, folders("llama"), tmp_path / "out", template=TextTemplate(add_eos=False), split=SplitSettings()
    )
    with pytest.raises(CorpusError, match=r"short\.jsonl:2: the text has fewer than two tokens"):
        adapt(request, Recorder())
