"""The first screen of an audit's report: three sentences, the table, and only what the reader needs before settings."""

import pytest
from sample_audits import estimate, sample_attack, sample_audit

from reticent.auditing.results import BlindBaseline, DataRecord, RateAtFpr
from reticent.reports.audit import attack_table, audit_report
from reticent.reports.audit_summary import summary_sentences


def at_one_percent(attack, value, half_width=0.05):
    return attack.model_copy(update={"rates": (RateAtFpr(fpr=0.01, tpr=estimate(value, half_width)),)})


def test_the_sentences_say_what_was_tried_how_well_and_what_follows():
    likelihood, reference = sample_attack("likelihood", "Likelihood", 0.6), sample_attack("reference", "Reference", 0.8)
    result = sample_audit(attacks=(likelihood, at_one_percent(reference, 0.25)))
    tried, success, follows = summary_sentences(result)
    assert tried.startswith("2 attacks tried to tell 190 texts that clinic model ")
    assert tried.endswith(" (lora) is said to have been trained on from 200 that it was not; 1 more gave no figures.")
    assert success == (
        "Reference, the best of 2, ranks a training text above another one 80 times in 100 [75, 85], where chance is "
        "50; while falsely accusing at most 1 text in 100, it finds 25 of 100 training texts [20, 30], where chance is "
        "1."
    )
    assert "treat it as confidential as those texts" in follows


def test_too_few_texts_for_a_rate_are_said_to_be():
    assert "too few to say how many" in summary_sentences(sample_audit())[1]


@pytest.mark.parametrize(
    ("area", "rate", "follows"),
    [
        (0.53, 0.03, "None of these attacks does better than chance"),
        (0.53, 0.08, "treat it as confidential"),
        (0.56, 0.03, "treat it as confidential"),
    ],
)
def test_above_chance_is_a_whole_interval_above_it(area, rate, follows):
    attack = at_one_percent(sample_attack("likelihood", "Likelihood", area), rate)
    assert follows in summary_sentences(sample_audit(attacks=(attack,)))[2]


def test_nothing_follows_where_the_sets_differ_without_a_model():
    blind = BlindBaseline(auc=estimate(0.9), beats_chance=True, num_folds=5)
    assert "without any model" in summary_sentences(sample_audit(blind=blind))[2]


def test_no_figures_are_said_to_be_none():
    _, success, follows = summary_sentences(sample_audit(attacks=()))
    assert success == "No attack could be scored, so nothing was measured."
    assert follows == "Nothing follows about what the model gives away."


def test_a_privately_trained_target_is_told_a_smaller_epsilon():
    target = {"name": "m", "differential_privacy": {"epsilon": 8.0, "delta": 1e-5}}
    assert "smaller ε than 8.0" in summary_sentences(sample_audit(target=target))[2]


def test_sentences_and_table_come_before_settings():
    report = audit_report(sample_audit())
    assert [section.title for section in report.sections][:2] == ["In short", "Attacks"]
    assert tuple(block.text for block in report.sections[0].blocks) == summary_sentences(sample_audit())
    assert report.sections[1].blocks[0] == attack_table(sample_audit().attacks)
    titles = [section.title for section in report.sections]
    assert titles.index("What was audited, and how") > titles.index("Attacks")


def test_cut_texts_are_a_warning():
    data = DataRecord(num_members=190, num_nonmembers=200, members_hash="1", nonmembers_hash="2", num_truncated=39)
    report = audit_report(sample_audit(data=data, scoring={"template": {"max_tokens": 256}}))
    assert "39 of 390 texts were cut after 256 tokens: only their beginnings were tried" in report.warnings
    assert not any("cut" in warning for warning in audit_report(sample_audit()).warnings)


def test_a_bound_on_epsilon_names_its_neighbouring_relation():
    assert "ε at least (text added or removed)" in attack_table(sample_audit().attacks).columns
