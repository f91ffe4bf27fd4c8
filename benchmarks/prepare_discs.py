"""The benchmark times prepare_swbd on discs of Switchboard's size, with empty audio.

The discs have 2,438 conversations of five minutes for training and 40 for evaluation.
An audio file is a SPHERE header followed by a hole (a sparse file). The MS98
transcripts have 54 utterances per side with silence between them, 263,304 utterances in
all, as many as Switchboard has. There are also a dictionary, conv.tab, PEM, STM and
GLM. The discs lie in a temporary directory.

    python benchmarks/prepare_discs.py                      # a minute
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import ROOT, write_report

from espnet_distopt.corpora.hub5.pem import Span, write_pem
from espnet_distopt.corpora.hub5.stm import Reference, write_stm
from espnet_distopt.corpora.ldc.conv_tab import write_conv_tab
from espnet_distopt.corpora.ldc.ms98 import Ms98Segment, write_transcript
from espnet_distopt.corpora.mini_swbd.hub5 import STM_HEADER, glm_text

RATE = 8000
SECONDS = 300
SEGMENTS = 108
TEXT = (
    "yeah uh-huh i think that's right and we had um a lot of [noise] dogs when "
    "[laughter-well] they w[ere]- them_1 you know the kids went to school there so"
)


def main() -> None:
    """Make the discs, run prepare_swbd on them, and report the time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="make small discs")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    conversations, evaluated = (40, 4) if args.quick else (2438, 40)
    with tempfile.TemporaryDirectory(prefix="discs.") as name:
        root = Path(name)
        started = time.monotonic()
        make_training(root / "swb1", conversations)
        make_evaluation(root / "hub5", evaluated)
        print(f"discs made in {time.monotonic() - started:.1f} s", flush=True)
        seconds, utterances = prepare(root)
    each = conversations + evaluated
    rows = [
        "| conversations | utterances | seconds | conversations/s |",
        "|---:|---:|---:|---:|",
        f"| {each} | {utterances} | {seconds:.1f} | {each / seconds:.0f} |",
    ]
    caption = (
        "One process of prepare_swbd reads discs of empty audio and writes the data "
        "directories train_nodup, train_dev and eval2000."
    )
    data = {
        "conversations": each,
        "utterances": utterances,
        "seconds": seconds,
    }
    write_report(
        "prepare_discs",
        args.quick,
        args.out,
        rows,
        caption,
        data,
        seeds=["each side's name, for its words"],
        repeats=1,
    )


def prepare(root: Path) -> tuple[float, int]:
    """Run prepare_swbd; return its seconds and the number of utterances it wrote."""
    command = [sys.executable, "-m", "espnet_distopt.bin.prepare_swbd"]
    command += ["--swb1", str(root / "swb1" / "discs")]
    command += ["--swb1_text", str(root / "swb1" / "swb_ms98_transcriptions")]
    command += ["--conv_tab", str(root / "swb1" / "conv.tab")]
    command += ["--eval2000_speech", str(root / "hub5" / "hub5e_00")]
    command += ["--eval2000_text", str(root / "hub5" / "reference")]
    command += ["--out", str(root / "data")]
    started = time.monotonic()
    returncode = subprocess.run(command, cwd=ROOT).returncode
    seconds = time.monotonic() - started
    if returncode:
        raise SystemExit(f"prepare_swbd failed: exit code {returncode}")
    texts = (root / "data").glob("*/text")
    utterances = sum(text.read_text().count("\n") for text in texts)
    return seconds, utterances


def make_training(root: Path, conversations: int) -> None:
    """Write the training set: four discs, transcripts, dictionary and conv.tab."""
    transcripts = root / "swb_ms98_transcriptions"
    speakers = {}
    for number in range(2001, 2001 + conversations):
        disc = root / "discs" / f"swb1_d{1 + number % 4}" / "data"
        write_empty_sphere(disc / f"sw{number:05d}.sph")
        for side in ("A", "B"):
            segments = segment_side(random.Random(f"{number}{side}"))
            write_transcript(transcripts, str(number), side, segments)
            pin = 1000 + (number + (side == "B")) % 540
            speakers[f"sw{number:05d}-{side}"] = str(pin)
    (transcripts / "sw-ms98-dict.text").write_text(dictionary(), encoding="utf-8")
    write_conv_tab(root / "conv.tab", speakers)


def make_evaluation(root: Path, conversations: int) -> None:
    """Write the evaluation set: recordings, PEM, STM and GLM.

    Half of the recordings are Switchboard's and half CallHome's.
    """
    speech, text = root / "hub5e_00" / "english", root / "reference"
    text.mkdir(parents=True)
    references = []
    for number in range(4001, 4001 + conversations):
        name, label = (
            (f"sw_{number}", "O,SWB") if number % 2 else (f"en_{number}", "O,CHE")
        )
        write_empty_sphere(speech / f"{name}.sph")
        for side in ("A", "B"):
            for segment in segment_side(random.Random(f"{name}{side}")):
                if segment.text != "[silence]":
                    start, end = round(segment.start, 2), round(segment.end, 2)
                    span = Span(name, side, start, end)
                    references.append(Reference(span, label, "(%hesitation) you know"))
    write_pem(speech / "hub5e_00.pem", (each.span for each in references))
    write_stm(text / "hub5e00.english.000405.stm", STM_HEADER, references)
    (text / "en20000405_hub5.glm").write_text(glm_text(), encoding="utf-8")


def segment_side(draw: random.Random) -> list[Ms98Segment]:
    """Return the segments of a side: utterances of about three seconds and silence."""
    length = SECONDS / SEGMENTS
    return [
        Ms98Segment(
            k * length,
            (k + 1) * length,
            "[silence]" if k % 2 else " ".join(draw.choices(TEXT.split(), k=18)),
        )
        for k in range(SEGMENTS)
    ]


def write_empty_sphere(path: Path) -> None:
    """Write a SPHERE file of five minutes and two mu-law channels: header and hole."""
    lines = [
        "NIST_1A",
        "   1024",
        "sample_count -i 2400000",
        "sample_n_bytes -i 1",
        "channel_count -i 2",
        f"sample_rate -i {RATE}",
        "sample_coding -s4 ulaw",
        "end_head",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode().ljust(1024))
    os.truncate(path, 1024 + 2 * RATE * SECONDS)


def dictionary() -> str:
    """Return some entries of a dictionary.

    One entry is an acronym with its phones; the others have letters in place of phones.
    """
    words = sorted(word for word in set(TEXT.split()) if word.isalpha())
    lines = ["IBM ay b iy eh m", *(f"{word} {' '.join(word)}" for word in words)]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
