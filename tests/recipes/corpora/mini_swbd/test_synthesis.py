import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.mini_swbd.corpus import (
    known_speakers,
    unseen_speakers,
)
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import Synthesizer, Voice

TEXT = "i think we will go to the lake"


def test_speech_has_words_a_minute_and_level():
    with Synthesizer() as synthesizer:
        samples = synthesizer.say(TEXT, Voice("en-us"))
    seconds = len(samples) / synthesizer.sample_rate
    assert samples.dtype == np.float32
    assert 1.0 < seconds < 4.0
    assert 0.05 < np.abs(samples).max() <= 1.0


def test_equal_seeds_and_pasts_give_equal_bits_in_one_process():
    """espeak-ng alone fails this: its static state outlives espeak_Terminate."""
    spoken = []
    for _ in range(2):
        with Synthesizer(seed=3) as synthesizer:
            spoken.append(
                [synthesizer.say(TEXT, Voice(v)) for v in ("en-us+f3", "en+m2")]
            )
    for first, second in zip(*spoken, strict=True):
        np.testing.assert_array_equal(first, second)


def test_two_synthesizers_at_once_share_nothing():
    with Synthesizer(seed=3) as alone:
        expected = [alone.say(TEXT, Voice("en-us+f3")) for _ in range(2)]
    with Synthesizer(seed=3) as first, Synthesizer(seed=4) as second:
        for each in expected:
            np.testing.assert_array_equal(first.say(TEXT, Voice("en-us+f3")), each)
            second.say("something else", Voice("en+m1"))


@pytest.mark.parametrize(
    ("text", "voice", "message"),
    [("hello", "nowhere", "no voice 'nowhere'"), ("", "en-us", "says nothing")],
)
def test_what_cannot_be_said(text, voice, message):
    with Synthesizer() as synthesizer, pytest.raises(InputError, match=message):
        synthesizer.say(text, Voice(voice))


def test_every_speaker_can_speak_and_unseen_ones_use_unseen_variants():
    known, unseen = known_speakers(60, seed=0), unseen_speakers(20, seed=0)
    with Synthesizer() as synthesizer:
        for name in {speaker.voice.name for speaker in known + unseen}:
            assert len(synthesizer.say("hello", Voice(name))) > 0
    variants = [
        {speaker.voice.name.split("+")[1] for speaker in people}
        for people in (known, unseen)
    ]
    assert variants[0].isdisjoint(variants[1])
    assert known == known_speakers(60, seed=0) != known_speakers(60, seed=1)
