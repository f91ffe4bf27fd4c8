"""Turns an invented dialogue into a two-channel telephone recording."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.ldc.ms98 import plain_words
from espnet_distopt.corpora.mini_swbd.dialogue import (
    ALL,
    Side,
    Turn,
    Variety,
    invent_dialogue,
)
from espnet_distopt.corpora.mini_swbd.noises import bump, laughter
from espnet_distopt.corpora.mini_swbd.phrases import ACRONYMS, PARTIALS
from espnet_distopt.corpora.mini_swbd.speakers import Speaker
from espnet_distopt.corpora.mini_swbd.synthesis import Synthesizer, Voice
from espnet_distopt.corpora.mini_swbd.telephone import (
    SAMPLE_RATE,
    Samples,
    TelephoneLine,
    to_telephone_rate,
    transmit,
)

# The least and the most seconds of silence that a transcriber leaves around speech.
_MARGIN = (0.03, 0.25)
_LEAD = 1.0  # seconds of silence at both ends of a recording

_SPOKEN = {plain_words(mark)[0]: letters for mark, letters in PARTIALS.items()}


@dataclass(frozen=True)
class TimedTurn:
    """An utterance: its side, start and end (seconds), and its text with MS98 marks."""

    side: Side
    start: float
    end: float
    text: str


@dataclass(frozen=True, eq=False)
class Conversation:
    """A recorded call.

    Attributes:
        samples: The audio, shape (time, 2), 8 kHz; side A is the first channel.
        turns: The utterances in the order of their starts. Those of one side never
            overlap.
    """

    samples: Samples
    turns: list[TimedTurn]

    @property
    def seconds(self) -> float:
        """Return the length of the recording in seconds."""
        return len(self.samples) / SAMPLE_RATE


def record(
    speakers: tuple[Speaker, Speaker],
    turns: int,
    line: Callable[[np.random.Generator], TelephoneLine],
    seed: str,
    variety: Variety = ALL,
) -> Conversation:
    """Let two speakers talk on the telephone.

    Args:
        speakers: The speakers on side A and on side B.
        turns: The number of utterances.
        line: Draws the properties of a side's line.
        seed: Decides everything else; equal seeds give equal bits.
        variety: How much of the grammar they use.
    """
    choices = random.Random(seed)
    noise = np.random.default_rng(choices.getrandbits(64))
    names = speakers[0].name, speakers[1].name
    dialogue = invent_dialogue(names, turns, choices, variety)
    voices = {"A": speakers[0].voice, "B": speakers[1].voice}
    with Synthesizer(choices.getrandbits(31)) as synthesizer:
        spoken = [
            speak(turn.text, voices[turn.side], synthesizer, noise) for turn in dialogue
        ]
    timed = arrange(dialogue, [len(samples) / SAMPLE_RATE for samples in spoken])
    length = round((max(turn.end for turn in timed) + _LEAD) * SAMPLE_RATE)
    sides = {"A": np.zeros(length, np.float32), "B": np.zeros(length, np.float32)}
    for turn, samples in zip(timed, spoken, strict=True):
        start = round(turn.start * SAMPLE_RATE)
        sides[turn.side][start : start + len(samples)] = samples
    received = [transmit(sides[side], line(noise), noise) for side in ("A", "B")]
    return Conversation(np.stack(received, axis=1), timed)


def arrange(dialogue: Sequence[Turn], seconds: Sequence[float]) -> list[TimedTurn]:
    """Give each turn, whose length is in `seconds`, its place in the conversation."""
    timed = []
    latest_end = _LEAD
    side_end = {"A": 0.0, "B": 0.0}
    for turn, length in zip(dialogue, seconds, strict=True):
        start = max(latest_end + turn.gap, side_end[turn.side])
        # It is rounded to a whole sample, so that the transcript is exact.
        start = round(start * SAMPLE_RATE) / SAMPLE_RATE
        timed.append(TimedTurn(turn.side, start, start + length, turn.text))
        side_end[turn.side] = start + length
        latest_end = max(latest_end, start + length)
    return sorted(timed, key=lambda turn: turn.start)


def speak(
    text: str, voice: Voice, synthesizer: Synthesizer, noise: np.random.Generator
) -> Samples:
    """Return the audio of an MS98 text with its laughs and noises, (time,), 8 kHz."""
    parts = [_silence(noise)]
    words: list[str] = []
    for token in [*text.split(), None]:
        if token is not None and (word := " ".join(plain_words(token, ACRONYMS))):
            words.append(_SPOKEN.get(word, word))
            continue
        if words:
            samples = synthesizer.say(" ".join(words), voice)
            parts.append(to_telephone_rate(samples, synthesizer.sample_rate))
            words.clear()
        if token is not None:
            parts.append(_sound(token, noise))
    return np.concatenate([*parts, _silence(noise)])


def _silence(noise: np.random.Generator) -> Samples:
    """Return the silence that a transcriber leaves around speech."""
    return np.zeros(round(noise.uniform(*_MARGIN) * SAMPLE_RATE), np.float32)


def _sound(mark: str, noise: np.random.Generator) -> NDArray[np.float32]:
    return laughter(noise) if mark == "[laughter]" else bump(noise)
