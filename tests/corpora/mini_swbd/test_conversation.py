import random
from itertools import pairwise

import numpy as np

from espnet_distopt.corpora.mini_swbd.conversation import arrange, record, speak
from espnet_distopt.corpora.mini_swbd.dialogue import Turn, invent_dialogue
from espnet_distopt.corpora.mini_swbd.speakers import known_speakers
from espnet_distopt.corpora.mini_swbd.synthesis import Synthesizer, Voice
from espnet_distopt.corpora.mini_swbd.telephone import good_line

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
