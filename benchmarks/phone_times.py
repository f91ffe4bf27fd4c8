"""The benchmark compares forced alignments with the phone times of a synthesizer.

The voices of mini_swbd say sentences of its grammar over its telephone lines, and
espeak-ng tells when each phoneme begins. Features, Gaussian mixtures from a flat start
and forced alignment are those of stage 10 of a hybrid recipe, with 600 sentences to
train on. They know the words and the lexicon, but no times.

A boundary is the beginning of a phone. The phones of an utterance and those of its
alignment are matched with the fewest insertions, deletions and substitutions, because
espeak-ng pronounces some words differently within a sentence ("a", "to"). A phone of
the synthesizer without a counterpart counts as missed at any distance.

    python benchmarks/phone_times.py      # 3 minutes
"""

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from report import write_report

from espnet_distopt.corpora.audio.log_mel import FRAME_SECONDS, log_mel, normalized
from espnet_distopt.corpora.ldc.ms98 import plain_words
from espnet_distopt.corpora.mini_swbd.dialogue import invent_dialogue
from espnet_distopt.corpora.mini_swbd.espeak_events import TimedPhoneme
from espnet_distopt.corpora.mini_swbd.pronunciations import pronounce, without_stress
from espnet_distopt.corpora.mini_swbd.speakers import (
    Speaker,
    known_speakers,
    unseen_speakers,
)
from espnet_distopt.corpora.mini_swbd.synthesis import Synthesizer
from espnet_distopt.corpora.mini_swbd.telephone import (
    SAMPLE_RATE,
    TelephoneLine,
    bad_line,
    good_line,
    to_telephone_rate,
    transmit,
)
from espnet_distopt.hmm.alignments import Pdfs
from espnet_distopt.hmm.cepstra import cepstra
from espnet_distopt.hmm.flat_start import FlatStart, align_all, train
from espnet_distopt.hmm.lexicon import SILENCE, phones_of
from espnet_distopt.hmm.states import PhoneStates, phone_segments
from espnet_distopt.scoring.confidence import bootstrap_interval
from espnet_distopt.scoring.counts import Counts

WITHIN = (10, 20, 30, 50)
"""The distances in ms whose shares of boundaries the table has."""

GOAL = 30
"""The distance in ms of the table's interval."""

MARGIN = (0.05, 0.25)
"""The least and the most seconds of silence before and after a sentence."""

SENTENCES = 15
"""The number of sentences of a speaker."""

Starts = list[tuple[str, float]]
"""Phones, and when each begins in seconds."""


@dataclass(frozen=True, eq=False)
class Sentence:
    """What was said.

    Attributes:
        words: The words.
        phones: The phones as espeak-ng spoke them.
        features: Shape (frames, 39).
    """

    words: list[str]
    phones: Starts
    features: NDArray[np.float32]


@dataclass(frozen=True)
class Compared:
    """The boundaries of some sentences.

    Attributes:
        phones: The number of phones that were spoken.
        distances: How many seconds too late the alignment begins each phone that it has
            a counterpart of.
    """

    phones: int
    distances: list[float]

    def beyond(self, milliseconds: float) -> int:
        """Return how many phones are missed, or begin further away than this."""
        return self.phones - sum(
            abs(distance) <= milliseconds / 1000 for distance in self.distances
        )


def texts(speaker: Speaker, rng: random.Random) -> Iterator[list[str]]:
    """Yield the words of turns that have three words at least, and no noises."""
    while True:
        for turn in invent_dialogue((speaker.name, "sam"), 66, rng):
            words = [w for token in turn.text.split() for w in plain_words(token)]
            if len(words) > 2 and "[" not in turn.text and turn.text.islower():
                yield words


def sentences(
    speaker: Speaker, line: Callable[[np.random.Generator], TelephoneLine], seed: str
) -> list[Sentence]:
    """Let a speaker say sentences on a line of their own."""
    choices = random.Random(seed)
    rng = np.random.default_rng(choices.getrandbits(64))
    own_line = line(rng)
    said: list[tuple[list[str], Starts]] = []
    raw = {}
    with Synthesizer(choices.getrandbits(31)) as synthesizer:
        for words in islice(texts(speaker, choices), SENTENCES):
            samples, phonemes = synthesizer.say_timed(" ".join(words), speaker.voice)
            margins = [round(rng.uniform(*MARGIN) * SAMPLE_RATE) for _ in range(2)]
            speech = to_telephone_rate(samples, synthesizer.sample_rate)
            heard = transmit(np.pad(speech, margins), own_line, rng)
            raw[str(len(said))] = log_mel((heard * 32767).astype(np.int16), SAMPLE_RATE)
            said.append((words, phone_starts(phonemes, margins[0] / SAMPLE_RATE)))
    features = map(cepstra, normalized(raw).values())
    return [Sentence(*each, f) for each, f in zip(said, features, strict=True)]


def phone_starts(phonemes: list[TimedPhoneme], offset: float) -> Starts:
    """Return the phones that are spoken, without stress, and when each begins."""
    return [
        (without_stress(each.name), offset + each.start)
        for each in phonemes
        if not each.is_pause and without_stress(each.name)
    ]


def aligned_starts(states: PhoneStates, pdfs: Pdfs) -> Starts:
    """Return the phones of an alignment, and when each begins."""
    segments = phone_segments(states, pdfs.tolist())
    return [(p, first * FRAME_SECONDS) for p, first, _ in segments if p != SILENCE]


def distances(spoken: Starts, aligned: Starts) -> list[float]:
    """Return how much later each matched phone of an alignment begins, in seconds."""
    names = [[phone for phone, _ in starts] for starts in (spoken, aligned)]
    found = []
    for step in Levenshtein.opcodes(*names):
        if step.tag in ("equal", "replace"):
            pairs = zip(
                spoken[step.src_start : step.src_end],
                aligned[step.dest_start : step.dest_end],
                strict=True,
            )
            found += [later - sooner for (_, sooner), (_, later) in pairs]
    return found


def compare(
    said: Mapping[str, Sentence], alignments: Mapping[str, Pdfs], states: PhoneStates
) -> Compared:
    """Compare the boundaries of sentences; those without an alignment are missed."""
    found = [
        distance
        for name, sentence in said.items()
        if name in alignments
        for distance in distances(
            sentence.phones, aligned_starts(states, alignments[name])
        )
    ]
    return Compared(sum(len(sentence.phones) for sentence in said.values()), found)


def counted(speaker: Compared) -> Counts:
    """Return a speaker's boundaries as words, those beyond the goal as errors."""
    beyond = speaker.beyond(GOAL)
    return Counts(
        sentences=SENTENCES,
        words=speaker.phones,
        correct=speaker.phones - beyond,
        substitutions=beyond,
        deletions=0,
        insertions=0,
        sentence_errors=0,
    )


def row(name: str, speakers: list[Compared]) -> str:
    """Return a line of the table, with an interval by a bootstrap over the speakers."""
    every = Compared(
        sum(each.phones for each in speakers),
        [distance for each in speakers for distance in each.distances],
    )
    shares = [f"{1 - every.beyond(limit) / every.phones:.1%}" for limit in WITHIN]
    found = bootstrap_interval(map(counted, speakers))
    if found is not None:
        shares[WITHIN.index(GOAL)] += f" ({100 - found[1]:.1f}-{100 - found[0]:.1f})"
    median = 1000 * float(np.median(every.distances))
    missed = every.phones - len(every.distances)
    cells = [name, str(len(speakers)), str(every.phones), *shares]
    return f"| {' | '.join(cells)} | {median:.1f} ms | {missed / every.phones:.1%} |"


def main() -> None:
    """Measure, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only try the command")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = known_speakers(4 if args.quick else 40, seed=0)
    unseen = unseen_speakers(2 if args.quick else 10, seed=0)
    groups = {"known voices": (known, good_line), "unseen voices": (unseen, bad_line)}
    said = {
        (group, number): {
            f"{group} {number} {n}": sentence
            for n, sentence in enumerate(sentences(speaker, line, f"{group} {number}"))
        }
        for group, (speakers, line) in groups.items()
        for number, speaker in enumerate(speakers)
    }
    every = {name: s for each in said.values() for name, s in each.items()}
    lexicon = pronounce(word for s in every.values() for word in s.words)
    states = PhoneStates(tuple(phones_of(lexicon)))
    words = {name: s.words for name, s in every.items()}
    features = {name: s.features for name, s in every.items()}
    training = {n: f for n, f in features.items() if n.startswith("known")}
    options = FlatStart(5, 2) if args.quick else FlatStart()
    mixtures, aligner = train(training, words, lexicon, states, options)
    alignments = align_all(aligner, mixtures, features, words)
    compared: dict[str, list[Compared]] = {group: [] for group in groups}
    for (group, _), own in said.items():
        compared[group].append(compare(own, alignments, states))
    limits = " | ".join(f"within {limit} ms" for limit in WITHIN)
    table = [
        f"| speech | speakers | boundaries | {limits} | median | missed |",
        f"|---{'|--:' * (len(WITHIN) + 4)}|",
        *(row(group, each) for group, each in compared.items()),
    ]
    caption = (
        "The shares count missed boundaries as too far away. The mixtures were trained "
        "on the known voices, over good lines; the unseen ones speak over bad lines. "
        "In brackets: the 95 % interval, by a bootstrap over the speakers. The median "
        "is of how much later the alignment begins a phone. A phone begins with its "
        "closure."
    )
    figures = {
        group: [{"phones": c.phones, "distances": c.distances} for c in each]
        for group, each in compared.items()
    }
    write_report(
        "phone_times",
        args.quick,
        args.out,
        table,
        caption,
        figures,
        seeds=(0,),
        repeats=1,
    )


if __name__ == "__main__":
    main()
