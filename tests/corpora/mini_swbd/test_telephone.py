import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from espnet_distopt.corpora.mini_swbd.noises import bump, laughter
from espnet_distopt.corpora.mini_swbd.telephone import (
    TelephoneLine,
    add_echo,
    bad_line,
    band_pass,
    good_line,
    mu_law,
    set_level,
    to_telephone_rate,
    transmit,
)


def tone(hertz, seconds=1.0, rate=8000):
    time = np.arange(round(seconds * rate)) / rate
    return np.sin(2 * np.pi * hertz * time).astype(np.float32)


def decibels(samples):
    return 10 * np.log10(np.mean(np.square(samples, dtype=np.float64)))


@pytest.mark.parametrize(
    ("hertz", "passes"),
    [(100, False), (200, False), (1000, True), (3000, True), (3700, False)],
)
def test_band(hertz, passes):
    change = decibels(band_pass(tone(hertz), TelephoneLine())) - decibels(tone(hertz))
    assert (change > -1) if passes else (change < -20)


def test_band_pass_does_not_delay():
    click = np.zeros(1000, np.float32)
    click[500] = 1
    assert np.argmax(np.abs(band_pass(click, TelephoneLine()))) == 500


def test_level_counts_active_samples_only():
    speech = np.concatenate([tone(500), np.zeros(24000, np.float32)])
    level = set_level(speech, -26, active=speech != 0)
    assert decibels(level[:8000]) == pytest.approx(-26, abs=0.1)
    silence = np.zeros(10, np.float32)
    np.testing.assert_array_equal(set_level(silence, -26), silence)


def test_echo_is_a_delayed_weaker_copy():
    click = np.zeros(1000, np.float32)
    click[0] = 1
    echo = add_echo(click, echo_db=-20, seconds=0.05)
    assert np.flatnonzero(echo).tolist() == [0, 400]
    assert echo[400] == pytest.approx(0.1)


@pytest.mark.parametrize("snr", [10.0, 30.0])
def test_signal_to_noise_ratio(snr):
    silence = np.zeros(8000, np.float32)
    sent = np.concatenate([tone(1000, 3.0), silence])
    got = transmit(sent, TelephoneLine(snr_db=snr), np.random.default_rng(0))
    speech, noise = decibels(got[1000:23000]), decibels(got[24500:])
    assert speech - noise == pytest.approx(10 * np.log10(10 ** (snr / 10) + 1), abs=0.5)


def test_clipping_bounds_the_speech():
    loud = TelephoneLine(level_db=-6, snr_db=80, clip=0.2)
    got = transmit(tone(1000), loud, np.random.default_rng(0))
    assert 0.18 < np.abs(got).max() < 0.22


def test_transmit_depends_on_its_generator_only():
    first, second, other = (
        transmit(tone(700), TelephoneLine(), np.random.default_rng(seed))
        for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, second)
    assert np.any(first != other)


def test_bad_lines_are_worse():
    rng = np.random.default_rng(0)
    good, bad = [good_line(rng) for _ in range(50)], [bad_line(rng) for _ in range(50)]
    assert min(line.snr_db for line in good) > max(line.snr_db for line in bad)
    assert all(line.echo_db is None for line in good)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float32, 64, elements=st.floats(-1.5, 1.5, width=32)))
def test_mu_law_is_idempotent_and_close(samples):
    once = mu_law(samples)
    np.testing.assert_array_equal(mu_law(once), once)
    clipped = np.clip(samples, -1, 1)
    # G.711 steps are at most 1/16 of the value at its largest; 4/8192 near zero.
    assert np.all(np.abs(once - clipped) <= np.abs(clipped) / 16 + 5e-4)


def test_resampling_keeps_duration_and_pitch():
    got = to_telephone_rate(tone(440, 1.0, rate=22050), 22050)
    assert len(got) == 8000
    spectrum = np.abs(np.fft.rfft(got))
    assert np.argmax(spectrum) == pytest.approx(440, abs=1)


@pytest.mark.parametrize("sound", [bump, laughter])
def test_noises_are_short_and_bounded(sound):
    for seed in range(20):
        samples = sound(np.random.default_rng(seed))
        assert 0.1 <= len(samples) / 8000 <= 1.0
        assert 0 < np.abs(samples).max() <= 1
