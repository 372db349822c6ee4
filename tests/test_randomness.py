"""Secret noise and public coins, against SciPy's distributions and a pure-Python Philox."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reticent.errors import InvalidValueError
from reticent.randomness import PublicCoins, SeededNoise, SystemNoise

# Kolmogorov-Smirnov and chi-squared tests of unseeded streams fail a correct generator with this probability.
FALSE_ALARM = 1e-7


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(3)])
def test_normals_follow_the_standard_normal_distribution(source):
    sample = source.standard_normal(200_000)
    assert sample.dtype == np.float64
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM
    lag_product = sample[:-1] * sample[1:]
    assert abs(lag_product.mean()) < stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(lag_product.size)


def _normal_from(monkeypatch, bits):
    monkeypatch.setattr("reticent.randomness.os.urandom", lambda count: bits.to_bytes(8, "little")[:count])
    return float(SystemNoise().standard_normal(1)[0])


def test_system_normals_have_finite_symmetric_tails_beyond_nine_deviations(monkeypatch):
    extreme_high = _normal_from(monkeypatch, 0)
    extreme_low = _normal_from(monkeypatch, 2**64 - 1)
    assert extreme_low == -extreme_high
    assert 9.0 < abs(extreme_high) < 10.0
    assert abs(extreme_high) == pytest.approx(stats.norm.isf(2.0**-65), rel=1e-12)
    assert _normal_from(monkeypatch, 2**63 - 1) == pytest.approx(0.0, abs=1e-15)
    assert _normal_from(monkeypatch, 2**63) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(4)])
def test_uniforms_are_uniform_and_independent(source):
    sample = source.uniform(200_000)
    assert sample.dtype == np.float64
    assert ((sample > 0.0) & (sample <= 1.0)).all()
    assert stats.kstest(sample, "uniform").pvalue > FALSE_ALARM
    lag_product = (sample[:-1] - 0.5) * (sample[1:] - 0.5) * 12
    assert abs(lag_product.mean()) < stats.norm.isf(FALSE_ALARM / 2) / np.sqrt(lag_product.size)
    assert source.uniform(0).size == 0


def test_uniforms_keep_their_precision_near_zero_and_never_reach_it(monkeypatch):
    """A probability of 2^-64 is met by the numbers below it, half of them in its lower half: not one grid point."""

    def uniform_of(high, low):
        drawn = high.to_bytes(8, "little") + low.to_bytes(8, "little")
        monkeypatch.setattr("reticent.randomness.os.urandom", lambda count: drawn[:count])
        return float(SystemNoise().uniform(1)[0])

    assert uniform_of(0, 0) == 2.0**-129
    assert uniform_of(0, 2**63) == pytest.approx(2.0**-65, rel=1e-15)
    assert uniform_of(0, 2**64 - 1) == 2.0**-64
    assert uniform_of(1, 0) == pytest.approx(2.0**-64, rel=1e-15)
    assert uniform_of(2**64 - 1, 2**64 - 1) == 1.0


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(5)])
def test_secret_index_is_uniform(source):
    counts = np.bincount([source.secret_index(6) for _ in range(30_000)], minlength=6)
    assert counts.size == 6
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_only_the_system_source_is_secure_and_only_the_seeded_one_repeats():
    assert SystemNoise.is_secure is True
    assert SeededNoise.is_secure is False
    np.testing.assert_array_equal(SeededNoise(9).standard_normal(5), SeededNoise(9).standard_normal(5))
    assert not np.array_equal(SystemNoise().standard_normal(5), SystemNoise().standard_normal(5))
    np.testing.assert_array_equal(SeededNoise(9).uniform(5), SeededNoise(9).uniform(5))
    assert not np.array_equal(SystemNoise().uniform(5), SystemNoise().uniform(5))


@pytest.mark.parametrize("worlds", [0, -2, 1.5, True])
def test_secret_index_refuses_what_is_not_a_number_of_worlds(worlds):
    for source in (SystemNoise(), SeededNoise(0)):
        with pytest.raises(InvalidValueError, match="num_worlds"):
            source.secret_index(worlds)


def _philox_4x64_10(counter, key):
    """Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), written from the paper."""
    mask = 2**64 - 1
    words, keys = list(counter), list(key)
    for _ in range(10):
        first = words[0] * 0xD2E7470EE14C6C93
        second = words[2] * 0xCA5A826395121157
        words = [(second >> 64) ^ words[1] ^ keys[0], second & mask, (first >> 64) ^ words[3] ^ keys[1], first & mask]
        keys = [(keys[0] + 0x9E3779B97F4A7C15) & mask, (keys[1] + 0xBB67AE8584CAA73B) & mask]
    return words


def test_a_third_party_can_replay_the_coins_from_the_documented_recipe():
    key = bytes(range(16))
    key_words = (int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little"))
    step = 2**40 + 17
    outputs = [x for block in (1, 2, 3) for x in _philox_4x64_10((block, 0, step, 0), key_words)][:10]
    uniforms = [((x >> 12) + 0.5) / 2.0**52 for x in outputs]
    np.testing.assert_array_equal(PublicCoins(key).uniform(step, 10), uniforms)
    np.testing.assert_allclose(PublicCoins(key).gumbel(step, 10), -np.log(-np.log(uniforms)), rtol=1e-15)


@settings(max_examples=40)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(0, 50))
def test_coins_depend_on_key_and_step_only(key, step, count, more):
    PublicCoins(key).gumbel((step + 1) % 2**64, 7)
    short, long = PublicCoins(key).gumbel(step, count), PublicCoins(key).gumbel(step, count + more)
    np.testing.assert_array_equal(long[:count], short)
    assert np.isfinite(long).all()


def test_coins_follow_the_gumbel_law_within_and_across_steps():
    coins = PublicCoins.from_seed(1, 0)
    assert stats.kstest(coins.gumbel(0, 100_000), "gumbel_r").pvalue > FALSE_ALARM
    first_of_each_step = np.concatenate([coins.gumbel(step, 1) for step in range(5_000)])
    assert stats.kstest(first_of_each_step, "gumbel_r").pvalue > FALSE_ALARM


def test_steps_keys_and_requests_do_not_overlap():
    streams = [PublicCoins.from_seed(seed, request) for seed in (0, 1, 11) for request in (0, 1, 10)]
    values = np.concatenate([coins.uniform(step, 300) for coins in streams for step in (0, 1, 2, 75, 2**32, 2**63)])
    # 52-bit uniforms: a chance collision among 16,200 has probability 3e-8.
    assert np.unique(values).size == values.size


def test_key_derivation_is_fixed_and_separates_seed_from_request():
    expected = hashlib.sha256(b"reticent/public-coins/v1:12:3").digest()[:16]
    assert PublicCoins.from_seed(12, 3).key == expected
    assert PublicCoins.from_seed(1, 23).key != expected
    assert PublicCoins.fresh().key != PublicCoins.fresh().key


@pytest.mark.parametrize("key", [b"", bytes(15), bytes(17), "0" * 16, bytearray(16)])
def test_a_coin_key_is_sixteen_bytes(key):
    with pytest.raises(InvalidValueError, match="16 bytes"):
        PublicCoins(key)


@pytest.mark.parametrize("step", [-1, 2**64, 0.5])
def test_a_step_is_a_64_bit_count(step):
    with pytest.raises(InvalidValueError, match="step"):
        PublicCoins(bytes(16)).gumbel(step, 1)


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(3)])
@pytest.mark.parametrize("count", [1, 7, 256])
def test_secret_bits_are_uniform_in_every_place(source, count):
    draws = [source.secret_bits(count) for _ in range(2_000)]
    assert all(0 <= draw < 2**count for draw in draws)
    ones = np.array([sum(draw >> place & 1 for draw in draws) for place in range(count)])
    assert stats.binom.sf(np.abs(ones - 1_000).max() + 999, 2_000, 0.5) > FALSE_ALARM / (2 * count)


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(3)])
def test_a_draw_of_no_bits_is_refused(source):
    with pytest.raises(InvalidValueError, match="count"):
        source.secret_bits(0)
