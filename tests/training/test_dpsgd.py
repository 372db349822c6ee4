"""Private training against independent accountants, closed forms, and gradients taken one record at a time."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import log_ndtr
from tiny_models import build_tiny_model, byte_tokenizer

from reticent.errors import InvalidValueError, ModelError
from reticent.randomness import SeededNoise, SystemNoise
from reticent.text.template import TextTemplate, encode
from reticent.training.dpsgd import (
    NoiseCalibration,
    add_clipped,
    add_noise,
    calibrate_noise,
    epsilon_spent,
    poisson_sample,
)
from reticent.training.private_training import (
    PrivateGradients,
    calibrate_training_noise,
    probe_per_record_gradients,
    refuse_unsuited,
)
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings
from reticent.training.single_training import Texts
from reticent.training.techniques.registry import attach, num_virtual_rows
from reticent.training.text_loss import TextLoss

TEXTS = ["the quick brown fox", "a stitch in time saves nine", "more haste", "still waters run deep", "x"]
SETTINGS = TechniqueSettings(rank=2, prefix_tokens=3)
TRAINED_BY_OPACUS = [
    ("llama", Technique.LORA),
    ("llama", Technique.PREFIX),
    ("llama", Technique.FULL),
    ("gpt2", Technique.LORA),
    ("bloom", Technique.FULL),
    ("t5", Technique.LORA),
    ("t5", Technique.PREFIX),
]
TRAINED_ONE_BY_ONE = [("gpt2", Technique.FULL), ("opt", Technique.FULL), ("t5", Technique.FULL)]


def epsilon_of_gaussian(noise_multiplier, delta):
    """ε of one Gaussian release of sensitivity 1, from its exact δ(ε) (Balle and Wang 2018, theorem 8)."""

    def excess(epsilon):
        a, b = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
        return math.exp(log_ndtr(a - b)) - math.exp(epsilon + log_ndtr(-a - b)) - delta

    return optimize.brentq(excess, 0.0, 200.0, xtol=1e-10)


@pytest.mark.parametrize(("epsilon", "delta", "steps"), [(1.0, 1e-5, 1), (4.0, 1e-6, 10), (0.3, 1e-3, 25)])
def test_without_sampling_the_noise_is_that_of_the_closed_form(epsilon, delta, steps):
    found = calibrate_noise(epsilon, delta, 1.0, steps)
    # T Gaussian releases of one multiplier are one release of a multiplier smaller by sqrt(T).
    exact = epsilon_of_gaussian(found.noise_multiplier / math.sqrt(steps), delta)
    assert exact <= found.epsilon <= epsilon
    assert found.epsilon == pytest.approx(exact, rel=5e-3)
    assert epsilon_of_gaussian(0.995 * found.noise_multiplier / math.sqrt(steps), delta) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"), [(1.0, 1e-5, 0.04, 50), (8.0, 1e-5, 0.04, 400), (3.0, 1e-6, 0.01, 1000)]
)
def test_with_sampling_the_noise_agrees_with_opacus_accountants(epsilon, delta, rate, steps):
    accountants = pytest.importorskip("opacus.accountants")
    found = calibrate_noise(epsilon, delta, rate, steps)
    assert found.epsilon <= epsilon
    by_other = {}
    for name in ("PRVAccountant", "RDPAccountant"):
        accountant = getattr(accountants, name)()
        accountant.history = [(found.noise_multiplier, rate, steps)]
        by_other[name] = accountant.get_epsilon(delta)
    # Opacus' PRV bound is an estimate plus 0.01; Rényi accounting is looser than both.
    assert found.epsilon == pytest.approx(by_other["PRVAccountant"] - 0.01, abs=0.01)
    assert found.epsilon < by_other["RDPAccountant"] < 1.3 * found.epsilon


def test_the_search_ends_on_the_private_side_and_close_to_the_target():
    found = calibrate_noise(2.0, 1e-5, 0.1, 30)
    assert found.epsilon == epsilon_spent(found.noise_multiplier, 1e-5, 0.1, 30) <= 2.0
    assert epsilon_spent(found.noise_multiplier * 0.998, 1e-5, 0.1, 30) > 2.0
    assert "dp-accounting" in found.accountant


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((math.nan, 1e-5, 0.1, 10), "epsilon"),
        ((0.0, 1e-5, 0.1, 10), "epsilon"),
        ((1.0, 0.0, 0.1, 10), "delta"),
        ((1.0, math.nan, 0.1, 10), "delta"),
        ((1.0, 1e-5, 0.0, 10), "sample_rate"),
        ((1.0, 1e-5, math.nan, 10), "sample_rate"),
        ((1.0, 1e-5, 0.1, 0), "num_steps"),
    ],
)
def test_numbers_outside_their_range_are_named(arguments, name):
    with pytest.raises(InvalidValueError, match=name):
        calibrate_noise(*arguments)


def test_batch_and_epochs_make_rate_and_steps():
    found = calibrate_training_noise(
        20, SingleTrainingSettings(batch_size=8, epochs=2), PrivacySettings(epsilon=5.0, delta=1e-2)
    )
    assert (found.sample_rate, found.num_steps) == (0.4, 6)
    few = calibrate_training_noise(
        3, SingleTrainingSettings(batch_size=8, epochs=2), PrivacySettings(epsilon=5.0, delta=1e-2)
    )
    assert (few.sample_rate, few.num_steps) == (1.0, 2)


def test_a_very_large_epsilon_ends_at_the_least_noise_with_the_epsilon_that_it_has():
    found = calibrate_noise(1e6, 1e-5, 0.1, 20)
    assert found.noise_multiplier == 0.25
    assert found.epsilon == epsilon_spent(0.25, 1e-5, 0.1, 20) < 1e6
    between = calibrate_noise(20.0, 1e-5, 0.1, 20)
    assert 0.25 < between.noise_multiplier < 1.0
    assert epsilon_spent(0.995 * between.noise_multiplier, 1e-5, 0.1, 20) > 20.0 >= between.epsilon


@pytest.mark.parametrize("delta", [0.05, 0.06, 0.5])
def test_a_delta_that_one_member_in_so_many_would_keep_is_refused(delta):
    with pytest.raises(InvalidValueError, match=rf"dp-delta must be below one over the 20 members, 0.05, got {delta}"):
        calibrate_training_noise(20, SingleTrainingSettings(), PrivacySettings(epsilon=5.0, delta=delta))
    assert (
        calibrate_training_noise(20, SingleTrainingSettings(), PrivacySettings(epsilon=5.0, delta=0.0499)).delta
        == 0.0499
    )


def hooked(family, technique):
    """A module whose adapters are not at their start, where some gradients would be zero, its loss and its texts."""
    module = attach(build_tiny_model(family, layers=2), technique, SETTINGS)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    encoded = encode(byte_tokenizer(), TextTemplate(max_tokens=24), TEXTS, is_encoder_decoder=family == "t5")
    in_chunks = technique is not Technique.FULL
    return (
        module,
        TextLoss(module, num_virtual_rows(module), in_chunks=in_chunks),
        Texts(encoded, 0, torch.device("cpu")),
    )


def gradients_one_by_one(module, texts):
    """The oracle: `transformers`' own loss of each text alone, and its gradient."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    result = []
    for record in range(len(texts)):
        loss = module(**texts.batch([record]), use_cache=False).loss
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        result.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])
    return result


def total_norm(tensors):
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def source_of(module, loss, texts, privacy, noise_multiplier=0.0, sample_rate=1.0, units=None):
    calibration = NoiseCalibration(noise_multiplier, sample_rate, 1, 1.0, 1e-5, "none")
    return PrivateGradients(module, loss, texts, calibration, SingleTrainingSettings(), privacy, SeededNoise(0), units)


@pytest.mark.parametrize(("family", "technique"), TRAINED_BY_OPACUS + TRAINED_ONE_BY_ONE)
def test_a_step_without_noise_is_the_mean_of_the_clipped_gradients(family, technique):
    pytest.importorskip("opacus")
    module, loss, texts = hooked(family, technique)
    module.eval()
    expected = gradients_one_by_one(module, texts)
    norms = [total_norm(gradients) for gradients in expected]
    clip = float(np.median(norms))  # some are clipped and some are not
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    source = source_of(
        module, loss, texts, PrivacySettings(epsilon=1.0, delta=1e-5, max_gradient_norm=clip, records_at_once=2)
    )
    assert (source.takes_one_by_one is not None) == ((family, technique) in TRAINED_ONE_BY_ONE)
    # The probe moves the weights and puts them back.
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    module.train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    assert source.backward(0) is None
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for index, parameter in enumerate(trained):
        naive = sum(g[index] * min(1.0, clip / n) for g, n in zip(expected, norms, strict=True)) / len(texts)
        assert torch.allclose(parameter.grad, naive, rtol=1e-3, atol=2e-6)
    source.close()
    assert not any(hasattr(parameter, "grad_sample") for parameter in module.parameters())
    assert torch.isfinite(loss(texts.batch([0]), "mean of tokens")[0])


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_a_step_by_unit_is_the_mean_of_the_units_clipped_mean_gradients(at_once):
    pytest.importorskip("opacus")
    module, loss, texts = hooked("llama", Technique.LORA)
    module.eval()
    half = len(texts) // 2
    units = [np.arange(half), np.array([half]), np.arange(half + 1, len(texts))]
    by_record = gradients_one_by_one(module, texts)
    expected = [[sum(by_record[r][p] for r in unit) / len(unit) for p in range(len(by_record[0]))] for unit in units]
    norms = [total_norm(gradients) for gradients in expected]
    clip = float(np.median(norms))
    privacy = PrivacySettings(epsilon=1.0, delta=1e-5, max_gradient_norm=clip, records_at_once=at_once, per_unit=True)
    source = source_of(module, loss, texts, privacy, units=units)
    source.backward(0)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for index, parameter in enumerate(trained):
        naive = sum(g[index] * min(1.0, clip / n) for g, n in zip(expected, norms, strict=True)) / len(units)
        assert torch.allclose(parameter.grad, naive, rtol=1e-3, atol=2e-6)
    source.close()


def test_no_unit_moves_the_sum_by_more_than_the_clipping_norm_however_many_records_it_has():
    pytest.importorskip("opacus")
    module, loss, texts = hooked("llama", Technique.LORA)
    module.eval()
    units = [np.arange(len(texts) - 1), np.array([len(texts) - 1])]
    sums = []
    for present in (units, units[1:]):
        privacy = PrivacySettings(epsilon=1.0, delta=1e-5, max_gradient_norm=1e-4, per_unit=True)
        source = source_of(module, loss, texts, privacy, units=present)
        source.backward(0)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        sums.append([parameter.grad * len(present) for parameter in parameters])
    influence = total_norm([a - b for a, b in zip(*sums, strict=True)])
    assert influence == pytest.approx(1e-4, rel=1e-3)


def test_no_record_moves_the_sum_by_more_than_the_clipping_norm():
    pytest.importorskip("opacus")
    module, loss, texts = hooked("llama", Technique.LORA)
    module.train()
    per_record = probe_per_record_gradients(module, loss)
    sums = {}
    for left_out in (None, *range(len(texts))):
        records = [record for record in range(len(texts)) if record != left_out]
        loss(texts.batch(records), "sum of text means")[0].backward()
        gradients = [1e3 * gradient for gradient in per_record.take(len(records))]
        sums[left_out] = [torch.zeros(gradient.shape[1:]) for gradient in gradients]
        add_clipped(sums[left_out], gradients, 0.7)
    per_record.close()
    for record in range(len(texts)):
        influence = total_norm([a - b for a, b in zip(sums[None], sums[record], strict=True)])
        # All gradients are far above the norm, so each record's share is the norm itself.
        assert influence == pytest.approx(0.7, rel=1e-4)


def test_clipping_leaves_small_gradients_and_shortens_large_ones():
    gradients = [torch.tensor([[3.0, 0.0], [0.3, 0.0], [0.0, 0.0]]), torch.tensor([[[4.0]], [[0.4]], [[0.0]]])]
    sums = [torch.zeros(2), torch.zeros(1, 1)]
    add_clipped(sums, gradients, 1.0)
    # Norms 5, 0.5 and 0: the first becomes (0.6, 0.8).
    assert torch.allclose(sums[0], torch.tensor([0.9, 0.0]))
    assert torch.allclose(sums[1], torch.tensor([[1.2]]))
    # Rounding never leaves a norm above the limit.
    for seed in range(20):
        total = [torch.zeros(1000)]
        add_clipped(total, [torch.randn(1, 1000, generator=torch.Generator().manual_seed(seed))], 1.0)
        assert 0.9999 < total_norm(total) <= 1.0


def test_noise_is_gaussian_of_the_stated_width_on_every_coordinate():
    module, loss, texts = hooked("llama", Technique.LORA)
    pytest.importorskip("opacus")
    module.train()
    privacy = PrivacySettings(epsilon=1.0, delta=1e-5, max_gradient_norm=0.5)
    source = source_of(module, loss, texts, privacy, noise_multiplier=3.0, sample_rate=1e-9)
    source.backward(0)  # no record is sampled: the gradient is the noise alone
    drawn = torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad]).double().numpy()
    width = 3.0 * 0.5 / (1e-9 * len(texts))
    assert stats.kstest(drawn / width, "norm").pvalue > 1e-3
    # Neither are coordinates alike, nor does a second step repeat the first.
    source.backward(1)
    again = torch.cat([p.grad.flatten() for p in module.parameters() if p.requires_grad]).double().numpy()
    assert len(np.unique(drawn)) == len(drawn)
    assert abs(stats.pearsonr(drawn, again).statistic) < 0.1
    source.close()


def test_noise_of_many_chunks_is_added_once(monkeypatch):
    monkeypatch.setattr("reticent.training.dpsgd._NOISE_AT_ONCE", 7)
    sums = [torch.full((5, 9), 100.0), torch.zeros(3)]
    add_noise(sums, 2.0, SeededNoise(5))
    expected = SeededNoise(5)
    flat = np.concatenate([expected.standard_normal(n) for n in (7, 7, 7, 7, 7, 7, 3, 3)])
    np.testing.assert_allclose(sums[0].flatten().numpy(), 100.0 + 2.0 * flat[:45], rtol=1e-6)
    np.testing.assert_allclose(sums[1].numpy(), 2.0 * flat[45:], rtol=1e-6)


def test_each_record_is_sampled_alone_with_the_stated_probability():
    noise, rounds = SeededNoise(2), 4000
    drawn = np.zeros((rounds, 6), dtype=bool)
    for row in drawn:
        row[poisson_sample(6, 0.3, noise)] = True
    for count in drawn.sum(0):
        assert stats.binomtest(int(count), rounds, 0.3).pvalue > 1e-4
    sizes = np.bincount(drawn.sum(1), minlength=7)
    expected = stats.binom.pmf(np.arange(7), 6, 0.3) * rounds
    assert stats.chisquare([*sizes[:5], sizes[5:].sum()], [*expected[:5], expected[5:].sum()]).pvalue > 1e-4
    assert len(poisson_sample(6, 1.0, noise)) == 6


def test_the_systems_noise_has_no_seed():
    torch.manual_seed(0)
    first, second = [torch.zeros(64)], [torch.zeros(64)]
    add_noise(first, 1.0, SystemNoise())
    torch.manual_seed(0)
    add_noise(second, 1.0, SystemNoise())
    assert not torch.equal(first[0], second[0])


def test_records_that_opacus_cannot_tell_apart_are_noticed():
    pytest.importorskip("opacus")
    module, loss, _ = hooked("gpt2", Technique.FULL)
    # One table of positions serves all records of a batch, so its gradient is their sum.
    with pytest.raises(ModelError, match=r"wpe\.weight do not come apart by record"):
        probe_per_record_gradients(module, loss)


def test_a_mixture_of_records_is_noticed(monkeypatch):
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule

    samplers = dict(GradSampleModule.GRAD_SAMPLERS)
    linear = samplers[torch.nn.Linear]

    def mixing(layer, activations, backprops):
        return {p: g.mean(0, keepdim=True).expand_as(g) for p, g in linear(layer, activations, backprops).items()}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, torch.nn.Linear, mixing)
    module, loss, _ = hooked("llama", Technique.LORA)
    with pytest.raises(ModelError, match="not those of its records"):
        probe_per_record_gradients(module, loss)


@pytest.mark.parametrize(
    ("technique", "settings", "words"),
    [
        (Technique.ADAPTER_H, {}, "full, lora, prefix, not for adapter-h"),
        (Technique.ICL, {}, "not for icl"),
        (Technique.LORA, {"dtype": "bfloat16"}, "float32"),
        (Technique.LORA, {"gradient_checkpointing": True}, "gradient checkpointing"),
    ],
)
def test_what_clipping_is_not_right_for_is_refused(technique, settings, words):
    with pytest.raises(InvalidValueError, match=words):
        refuse_unsuited(technique, SingleTrainingSettings(**settings))


def test_a_missing_extra_is_named(monkeypatch):
    for name in ("opacus", "dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidValueError, match=r"pip install 'reticent\[dp\]'"):
        calibrate_noise(1.0, 1e-5, 0.1, 10)
    module, loss, _ = hooked("llama", Technique.LORA)
    with pytest.raises(InvalidValueError, match=r"pip install 'reticent\[dp\]'"):
        probe_per_record_gradients(module, loss)
