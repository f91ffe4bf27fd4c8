"""Writes discs of Switchboard, Fisher and an evaluation, with empty audio."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.hub5.pem import Span, write_pem
from espnet_distopt.corpora.hub5.stm import Reference, write_stm
from espnet_distopt.corpora.ldc.conv_tab import write_conv_tab
from espnet_distopt.corpora.ldc.ms98 import Ms98Segment, write_transcript
from espnet_distopt.corpora.mini_swbd.hub5 import STM_HEADER, glm_text

RATE = 8000
TEXT = (
    "yeah uh-huh i think that's right and we had um a lot of [noise] dogs when "
    "[laughter-well] they w[ere]- them_1 you know the kids went to school there so"
)


@dataclass(frozen=True)
class Size:
    """How large the discs are.

    Attributes:
        switchboard: Conversations of Switchboard.
        fisher: Conversations of Fisher.
        evaluation: Conversations of the evaluation.
        segments: Segments on a side of Switchboard, of which every second is silence.
        turns: Turns of a conversation of Fisher.
        seconds: The length of a segment or a turn.
    """

    switchboard: int
    fisher: int
    evaluation: int
    segments: int
    turns: int
    seconds: float


def make_discs(root: Path, size: Size) -> None:
    """Write the discs of Switchboard, Fisher and the evaluation."""
    started = time.monotonic()
    make_training(root / "swb1", size)
    make_fisher(root / "fisher", size)
    make_evaluation(root / "hub5", size)
    print(f"discs made in {time.monotonic() - started:.1f} s", flush=True)


def make_fisher(root: Path, size: Size) -> None:
    """Write Fisher's recordings and transcripts."""
    length = size.seconds
    for number in range(1, 1 + size.fisher):
        name, folder = f"fe_03_{number:05d}", root / f"{number // 100:03d}"
        write_empty_sphere(folder / f"{name}.sph", size.turns * length)
        draw = random.Random(name)
        words = [word for word in TEXT.split() if word.isalpha()]
        turns = (
            f"{k * length:.2f} {(k + 1) * length:.2f} {'AB'[k % 2]}: "
            f"{' '.join(draw.choices(words, k=10))}\n"
            for k in range(size.turns)
        )
        (folder / f"{name}.txt").write_text(f"# {name}.sph\n\n{''.join(turns)}")


def make_training(root: Path, size: Size) -> None:
    """Write the training set: four discs, transcripts, dictionary and conv.tab."""
    transcripts = root / "swb_ms98_transcriptions"
    speakers = {}
    for number in range(2001, 2001 + size.switchboard):
        disc = root / "discs" / f"swb1_d{1 + number % 4}" / "data"
        write_empty_sphere(disc / f"sw{number:05d}.sph", size.segments * size.seconds)
        for side in ("A", "B"):
            segments = segment_side(random.Random(f"{number}{side}"), size)
            write_transcript(transcripts, str(number), side, segments)
            pin = 1000 + (number + (side == "B")) % 540
            speakers[f"sw{number:05d}-{side}"] = str(pin)
    (transcripts / "sw-ms98-dict.text").write_text(dictionary(), encoding="utf-8")
    write_conv_tab(root / "conv.tab", speakers)


def make_evaluation(root: Path, size: Size) -> None:
    """Write the evaluation set: recordings, PEM, STM and GLM.

    Half of the recordings are Switchboard's and half CallHome's.
    """
    speech, text = root / "hub5e_00" / "english", root / "reference"
    text.mkdir(parents=True)
    references = []
    for number in range(4001, 4001 + size.evaluation):
        name, label = (
            (f"sw_{number}", "O,SWB") if number % 2 else (f"en_{number}", "O,CHE")
        )
        write_empty_sphere(speech / f"{name}.sph", size.segments * size.seconds)
        for side in ("A", "B"):
            for segment in segment_side(random.Random(f"{name}{side}"), size):
                if segment.text != "[silence]":
                    start, end = round(segment.start, 2), round(segment.end, 2)
                    span = Span(name, side, start, end)
                    references.append(Reference(span, label, "(%hesitation) you know"))
    write_pem(speech / "hub5e_00.pem", (each.span for each in references))
    write_stm(text / "hub5e00.english.000405.stm", STM_HEADER, references)
    (text / "en20000405_hub5.glm").write_text(glm_text(), encoding="utf-8")


def segment_side(draw: random.Random, size: Size) -> list[Ms98Segment]:
    """Return the segments of a side: utterances and silence in turn."""
    length = size.seconds
    return [
        Ms98Segment(
            k * length,
            (k + 1) * length,
            "[silence]" if k % 2 else " ".join(draw.choices(TEXT.split(), k=18)),
        )
        for k in range(size.segments)
    ]


def write_empty_sphere(path: Path, seconds: float) -> None:
    """Write a SPHERE file with two mu-law channels: header and hole."""
    samples = round(seconds * RATE)
    lines = [
        "NIST_1A",
        "   1024",
        f"sample_count -i {samples}",
        "sample_n_bytes -i 1",
        "channel_count -i 2",
        f"sample_rate -i {RATE}",
        "sample_coding -s4 ulaw",
        "end_head",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode().ljust(1024))
    os.truncate(path, 1024 + 2 * samples)


def dictionary() -> str:
    """Return some entries of a dictionary.

    One entry is an acronym with its phones; the others have letters in place of phones.
    """
    words = sorted(word for word in set(TEXT.split()) if word.isalpha())
    lines = ["IBM ay b iy eh m", *(f"{word} {' '.join(word)}" for word in words)]
    return "".join(f"{line}\n" for line in lines)
