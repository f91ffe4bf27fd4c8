import random
from itertools import pairwise

import numpy as np
import pytest

from espnet_distopt.recipes.corpora.mini_swbd.conversation import (
    TelephoneLine,
    add_echo,
    arrange,
    bad_line,
    band_pass,
    good_line,
    record,
    speak,
    transmit,
)
from espnet_distopt.recipes.corpora.mini_swbd.corpus import known_speakers
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import Turn, invent_dialogue
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import Synthesizer, Voice

PAIR = tuple(known_speakers(2, seed=0))


def test_turns_of_one_side_never_overlap_and_gaps_are_kept():
    rng = random.Random(0)
    dialogue = invent_dialogue(("ann", "bob"), 100, rng)
    seconds = [round(rng.uniform(0.2, 4), 3) for _ in dialogue]
    timed = arrange(dialogue, seconds)
    assert sorted(turn.text for turn in timed) == sorted(t.text for t in dialogue)
    for side in "AB":
        turns = [turn for turn in timed if turn.side == side]
        for before, after in pairwise(turns):
            assert before.end <= after.start


def test_a_listener_may_talk_into_the_end_of_a_turn():
    timed = arrange([Turn("A", "well", 0.5), Turn("B", "right", -0.3)], [2.0, 0.5])
    assert [turn.start for turn in timed] == [1.5, 3.2]
    timed = arrange([Turn("A", "well", 0.5), Turn("A", "so", -0.3)], [2.0, 0.5])
    assert [turn.start for turn in timed] == [1.5, 3.5]


def test_marks_are_heard_but_not_said():
    voice, rng = Voice("en-us"), np.random.default_rng
    with Synthesizer() as synthesizer:
        plain = speak("hello you", voice, synthesizer, rng(0))
        laughed = speak("[laughter-hello] you", voice, synthesizer, rng(0))
        noisy = speak("hello [noise] you [laughter]", voice, synthesizer, rng(0))
        only = speak("[laughter]", voice, synthesizer, rng(0))
    assert abs(len(laughed) - len(plain)) < 400
    assert len(noisy) > len(plain) + 3200
    assert 0.4 < len(only) / 8000 < 1.2


def test_each_side_is_on_its_own_channel_where_the_times_say():
    call = record(PAIR, 8, good_line, seed="x")
    assert call.samples.shape == (round(call.seconds * 8000), 2)
    assert {turn.side for turn in call.turns} == {"A", "B"}
    for channel, side in enumerate("AB"):
        talking = np.zeros(len(call.samples), bool)
        for turn in call.turns:
            if turn.side == side:
                talking[round(turn.start * 8000) : round(turn.end * 8000)] = True
        power = np.square(call.samples[:, channel])
        assert power[talking].mean() > 100 * power[~talking].mean()


def test_same_seed_same_call():
    first, second, other = (record(PAIR, 4, good_line, seed=s) for s in "xxy")
    np.testing.assert_array_equal(first.samples, second.samples)
    assert first.turns == second.turns
    assert first.turns != other.turns


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


def test_bad_lines_are_worse():
    rng = np.random.default_rng(0)
    good, bad = [good_line(rng) for _ in range(50)], [bad_line(rng) for _ in range(50)]
    assert min(line.snr_db for line in good) > max(line.snr_db for line in bad)
    assert all(line.echo_db is None for line in good)
