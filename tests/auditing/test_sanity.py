"""An audit must see nothing where there is nothing, and everything where a model has learnt its texts by heart."""

import json

import pytest
from fake_targets import Notes, random_texts
from tiny_models import build_tiny_model, byte_tokenizer, save_tiny_model

from reticent.auditing.attacks.registry import parse_attacks
from reticent.auditing.canaries.canary_audit import CanarySettings
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries, plant
from reticent.auditing.inputs.gathering import GatheringSettings
from reticent.auditing.run import AuditRequest, run_audit
from reticent.auditing.targets.scoring import ModelScorer, model_fingerprint
from reticent.auditing.targets.targets import Target, TargetKind, TargetOptions, open_target
from reticent.text.corpus import TextRecord, text_hash
from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import attach
from reticent.training.trainer import AdaptRequest, adapt

TEMPLATE = TextTemplate(max_tokens=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "llama"
    save_tiny_model(folder, "llama", layers=2)
    return folder


def trained(folder, corpus, base, epochs, heldout, learning_rate=1e-2, technique=Technique.FULL):
    return adapt(
        AdaptRequest(
            corpus=corpus,
            model=str(base),
            out=folder,
            technique=technique,
            settings=TechniqueSettings(rank=4),
            template=TEMPLATE,
            split=SplitSettings(heldout_count=heldout),
            training=SingleTrainingSettings(epochs=epochs, batch_size=10, learning_rate=learning_rate),
        ),
        Notes(),
    )


def audit(tmp_path, target, members, nonmembers, attacks, **changes):
    gathering = {"cache": tmp_path / "cache", "num_neighbours": 3, "num_paraphrases": 2, "num_shots": 1}
    request = AuditRequest(
        target=target,
        members=members,
        nonmembers=nonmembers,
        attacks=parse_attacks(attacks),
        out=tmp_path / "out",
        gathering=GatheringSettings(**gathering),
        num_resamples=500,
        **changes,
    )
    return run_audit(request, Notes())


def test_on_an_untrained_target_every_interval_contains_one_half(tmp_path, base):
    save_tiny_model(tmp_path / "reference", "llama", layers=2, seed=1)
    options = TargetOptions(reference=str(tmp_path / "reference"), template=TEMPLATE.model_dump())
    target = open_target(str(base), options)
    attacks = "likelihood,reference,zlib,neighbourhood,min-k,min-k++,gradient-norm,ez-mia,wbc,rmia,recall"
    texts = random_texts(80, seed=0, words=5)
    # All eleven intervals are to hold together with 95 %, so each has an eleventh of the error.
    settings = {"attacks_named": True, "confidence": 1 - 0.05 / 11}
    result = audit(tmp_path, target, texts[:40], texts[40:], attacks, **settings)
    assert [attack.name for attack in result.attacks] == attacks.split(",")
    for attack in result.attacks:
        assert attack.auc.low <= 0.5 <= attack.auc.high, attack.name
        assert attack.epsilon.low < 1.0
    assert not result.blind.beats_chance


def test_a_target_overfitted_on_fifty_texts_gives_them_away(tmp_path, base):
    texts = random_texts(100, seed=6, words=5)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    adapted = trained(tmp_path / "adapted", corpus, base, epochs=25, heldout=50)
    by_hash = {text_hash(text): text for text in texts}
    members, nonmembers = ([by_hash[key] for key in keys] for keys in (adapted.member_hashes, adapted.heldout_hashes))
    assert (len(members), len(nonmembers)) == (50, 50)
    target = open_target(str(adapted.folder), TargetOptions())
    result = audit(tmp_path, target, members, nonmembers, "likelihood,reference,gradient-norm")
    aucs = {attack.name: attack.auc for attack in result.attacks}
    assert aucs["reference"].value > 0.95
    assert aucs["gradient-norm"].value > 0.8
    assert result.attacks[1].epsilon.low > 0.5


def test_a_canary_planted_a_hundredfold_is_extracted_and_exposed(tmp_path, base):
    records = [TextRecord(text, str(i), f"corpus:{i}") for i, text in enumerate(random_texts(60, seed=7, words=4))]
    canaries = draw_canaries(CanaryKind.DIGITS, 1, (100,), seed=0)
    plant(records, canaries, tmp_path / "planted", seed=0)
    adapted = trained(tmp_path / "adapted", tmp_path / "planted" / "planted.jsonl", base, epochs=4, heldout=20)
    by_hash = {text_hash(record.text): record.text for record in records}
    members, nonmembers = (
        [by_hash[key] for key in keys if key in by_hash] for keys in (adapted.member_hashes, adapted.heldout_hashes)
    )
    result = audit(
        tmp_path,
        open_target(str(adapted.folder), TargetOptions()),
        members,
        nonmembers,
        "likelihood",
        canaries=canaries,
        canary_settings=CanarySettings(num_candidates=200, num_samples=3),
    )
    held_out, planted = result.canaries
    assert (held_out.repetitions, planted.repetitions) == (0, 100)
    assert planted.extracted_greedy.value == 1.0
    assert planted.exposures[0].rank == 1
    assert held_out.extracted_greedy.value == 0.0
    assert held_out.extracted_sampled.value == 0.0
    secret = next(canary.secret for canary in canaries if canary.member)
    assert secret not in (tmp_path / "out" / "report.json").read_text()


def test_an_adapter_that_starts_as_the_base_gives_nothing_away(tmp_path, base):
    module = attach(build_tiny_model("llama", layers=2), Technique.LORA, TechniqueSettings(rank=2))
    fingerprint = model_fingerprint(module, byte_tokenizer())
    scorer = ModelScorer(module, byte_tokenizer(), TEMPLATE, fingerprint)
    off = ModelScorer(module, byte_tokenizer(), TEMPLATE, fingerprint, with_adapter=False)
    target = Target(TargetKind.PEFT, {"name": "untrained adapter"}, scorer, TEMPLATE, off, {"name": "base"})
    texts = random_texts(40, seed=8, words=5)
    result = audit(tmp_path, target, texts[:20], texts[20:], "reference,ez-mia,wbc", attacks_named=True)
    for attack in result.attacks:
        assert attack.auc.value == pytest.approx(0.5)
        assert any("same score" in warning for warning in attack.warnings)
