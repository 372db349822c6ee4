import pytest
from sample_audits import sample_attack, sample_audit

from reticent.auditing.attacks.evidence import Need
from reticent.auditing.attacks.registry import ATTACKS
from reticent.auditing.metrics import unavailable_rate
from reticent.reports.evidence import count_texts_needed, evidence_section, findings, lowest_reportable_fpr
from reticent.reports.model import Table

EDPB_CLASSES = {
    "Attribute inference",
    "Membership inference",
    "Exfiltration",
    "Regurgitation of training data",
    "Model inversion",
    "Reconstruction",
}


def by_class(result):
    return {finding.attack_class: finding for finding in findings(result)}


def test_every_class_of_both_sources_is_listed_once():
    found = findings(sample_audit())
    edpb = [finding.attack_class for finding in found if "EDPB 28/2024" in finding.source]
    assert sorted(edpb) == sorted(EDPB_CLASSES)
    requirements = {finding.source for finding in found if finding.source.startswith("AISVS")}
    assert requirements == {"AISVS 11.3.1", "AISVS 11.3.2", "AISVS 11.3.3"}


def test_what_was_not_run_is_said_not_to_be_tested():
    found = by_class(sample_audit(attacks=(), canaries=(), one_run=None))
    assert {finding.tested for finding in found.values()} == {"no"}
    assert all(finding.how for finding in found.values())
    assert all(not finding.strength for finding in found.values())


def test_membership_states_texts_and_the_lowest_reportable_rate():
    found = by_class(sample_audit())["Membership inference"]
    assert found.tested == "yes"
    assert "190 members and 200 non-members" in found.strength
    assert "lowest reportable FPR 0.015" in found.strength  # 3 / 200
    assert "0.800 [0.750, 0.850] (Reference)" in found.strength


def test_the_lowest_rate_never_exceeds_one():
    assert lowest_reportable_fpr(sample_attack("a", "A", 0.5, num_nonmembers=2)) == 1.0
    assert lowest_reportable_fpr(sample_attack("a", "A", 0.5, num_nonmembers=3000)) == pytest.approx(0.001)


@pytest.mark.parametrize(("fpr", "needed"), [(0.001, 3000), (0.01, 300), (0.05, 60), (0.07, 43)])
def test_texts_needed_are_the_fewest_that_the_metrics_accept(fpr, needed):
    assert count_texts_needed(fpr) == needed
    assert unavailable_rate(fpr, needed) is None
    assert unavailable_rate(fpr, needed - 1) is not None


def test_an_attack_is_classed_by_what_it_needs():
    """Nothing is listed twice: a new attack with a reference or shadow models is found by its entry alone."""
    for name, attack in ATTACKS.items():
        found = by_class(sample_audit(attacks=(sample_attack(str(name), attack.title, 0.6),)))
        has_reference = bool(attack.needs & {Need.REFERENCE, Need.SHADOWS, Need.SELF_PROMPTED})
        assert found["Shadow-model attacks"].tested == ("yes" if Need.SHADOWS in attack.needs else "no")
        assert found["Likelihood-ratio attacks"].tested == ("yes" if has_reference else "no")
        assert attack.title in found["Membership inference"].how
        assert ("the weights as well" in found["Membership inference"].assumptions) == attack.is_white_box


@pytest.mark.parametrize(
    ("names", "shadow", "ratio"),
    [(("likelihood",), "no", "no"), (("likelihood", "reference"), "no", "yes"), (("lira",), "yes", "yes")],
)
def test_kinds_of_simulation_follow_the_attacks_that_ran(names, shadow, ratio):
    found = by_class(sample_audit(attacks=tuple(sample_attack(name, name, 0.6) for name in names)))
    assert found["Shadow-model attacks"].tested == shadow
    assert found["Likelihood-ratio attacks"].tested == ratio
    assert found["Label-only attacks"].tested == "no"


def test_extraction_and_exposure_count_under_different_classes():
    result = sample_audit()
    only_exposure = [canary.model_copy(update={"extracted_greedy": None}) for canary in result.canaries]
    found = by_class(sample_audit(canaries=tuple(only_exposure)))
    assert found["Regurgitation of training data"].tested == "no"
    assert found["Reconstruction"].tested == "in part"
    assert "2 canaries, up to 1,024 candidates" in found["Reconstruction"].strength
    assert by_class(result)["Regurgitation of training data"].tested == "yes"


def test_privacy_recorded_with_the_model_is_repeated_as_recorded():
    target = {"name": "m", "differential_privacy": {"epsilon": 8.0, "delta": 1e-5, "accountant": "PRV"}}
    row = by_class(sample_audit(target=target))["Differentially private training"]
    assert row.tested == "no"
    assert "epsilon 8.0, delta 1e-05, accountant PRV" in row.how


def test_the_page_draws_no_conclusion():
    section = evidence_section(sample_audit())
    text = " ".join(block.text for block in section.blocks if block.kind == "paragraph")
    table = next(block for block in section.blocks if isinstance(block, Table))
    cells = " ".join(str(cell) for row in table.rows for cell in row)
    assert "No legal conclusion" in text
    for word in ("compliant", "anonymous", "lawful", "passes", "safe"):
        assert word not in cells
