"""The benchmark times the data stages on synthetic discs of full size.

There are 2,438 conversations of Switchboard, 11,699 of Fisher and 40 for evaluation,
and two sets of discs of them. The first has all text: 108 segments on a side of
Switchboard, of which every second is silence, which makes 263,304 utterances, and 170
turns in a conversation of Fisher, which makes 1,988,830. Its audio has the full length,
but a file is only a SPHERE header followed by a hole (a sparse file); stage 1 reads no
more. Stage 10 then counts lengths for three times its training set, as for copies at
speeds 0.9 and 1.1. The second set has as many conversations of four short utterances,
so that stage 3 opens as many files, cuts them and changes the speed within a gigabyte.
The discs lie in a temporary directory.

    python benchmarks/prepare_discs.py                      # some minutes, 3 GB of disk
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from report import ROOT, write_report

from espnet_distopt.corpora.hub5.pem import Span, write_pem
from espnet_distopt.corpora.hub5.stm import Reference, write_stm
from espnet_distopt.corpora.ldc.conv_tab import write_conv_tab
from espnet_distopt.corpora.ldc.ms98 import Ms98Segment, write_transcript
from espnet_distopt.corpora.mini_swbd.hub5 import STM_HEADER, glm_text

RATE = 8000
COPIES = ("sp0.9-", "sp1.1-")
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


FULL = Size(2438, 11699, 40, 108, 170, 2.78)
SHORT = Size(2438, 11699, 40, 4, 4, 0.3)
QUICK_FULL = Size(40, 60, 4, 20, 20, 2.78)
QUICK_SHORT = Size(10, 20, 4, 4, 4, 0.3)


@dataclass(frozen=True)
class Step:
    """What a stage did.

    Attributes:
        step: The name of the stage.
        processes: The number of processes that worked.
        utterances: How many it wrote.
        seconds: How long it took.
        megabytes: The memory of its largest process, at least that of this benchmark.
    """

    step: str
    processes: int
    utterances: int
    seconds: float
    megabytes: float


def main() -> None:
    """Make the discs, run the stages on them, and report time and memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="make small discs")
    parser.add_argument("--nj", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    full, short = (QUICK_FULL, QUICK_SHORT) if args.quick else (FULL, SHORT)
    with tempfile.TemporaryDirectory(prefix="discs.") as name:
        steps = [*of_all_text(Path(name, "full"), full, args.nj)]
        steps += of_short_audio(Path(name, "short"), short, args.nj)
    rows = [
        "| stage | processes | utterances | seconds | utterances/s | MB of a process |",
        "|:--|---:|---:|---:|---:|---:|",
        *(
            f"| {each.step} | {each.processes} | {each.utterances} | {each.seconds:.1f} "
            f"| {each.utterances / each.seconds:.0f} | {each.megabytes:.0f} |"
            for each in steps
        ),
    ]
    conversations = full.switchboard + full.fisher + full.evaluation
    caption = (
        f"The data stages on synthetic discs of {conversations} conversations, first "
        "with all text and no audio, then with short audio. Memory is the most that the "
        f"largest process had, or the {own_megabytes():.0f} MB of the benchmark itself."
    )
    write_report(
        "prepare_discs",
        args.quick,
        args.out,
        rows,
        caption,
        {"conversations": conversations, "steps": [asdict(each) for each in steps]},
        seeds=["each side's name, for its words"],
        repeats=1,
    )


def of_all_text(root: Path, size: Size, nj: int) -> list[Step]:
    """Time stage 1, and stage 10 on three times its training set."""
    make_discs(root, size)
    steps = [prepare(root, "1 data: all text")]
    dumped = triple(root / "data" / "train_all", root / "dump" / "train_all")
    command = ["speech_shapes", "--train", str(dumped), "--valid", str(dumped)]
    command += ["--token_type", "word", "--nj", str(nj), "--out", str(root / "stats")]
    seconds, megabytes = timed(command)
    # The set stands for the validation set, too.
    written = 2 * lines(dumped / "text")
    return [
        *steps,
        Step("10 lengths: all text, 3 speeds", nj, written, seconds, megabytes),
    ]


def of_short_audio(root: Path, size: Size, nj: int) -> list[Step]:
    """Time stages 1 and 3, the latter at three speeds."""
    make_discs(root, size)
    steps = [prepare(root, "1 data: short audio")]
    target = root / "dump" / "train_all"
    command = ["format_data", str(root / "data" / "train_all"), str(target)]
    seconds, megabytes = timed(
        [*command, "--nj", str(nj), "--speed_factors", "0.9 1.0 1.1"]
    )
    written = lines(target / "text")
    step = Step("3 format: short audio, 3 speeds", nj, written, seconds, megabytes)
    return [*steps, step]


def prepare(root: Path, name: str) -> Step:
    """Run prepare_swbd; return its time and the number of utterances it wrote."""
    command = ["prepare_swbd", "--swb1", str(root / "swb1" / "discs")]
    command += ["--swb1_text", str(root / "swb1" / "swb_ms98_transcriptions")]
    command += ["--conv_tab", str(root / "swb1" / "conv.tab")]
    command += ["--fisher_speech", str(root / "fisher")]
    command += ["--fisher_text", str(root / "fisher")]
    command += ["--eval2000_speech", str(root / "hub5" / "hub5e_00")]
    command += ["--eval2000_text", str(root / "hub5" / "reference")]
    # The synthetic texts repeat themselves more than people do.
    command += ["--max_duplicates", "1000000", "--out", str(root / "data")]
    seconds, megabytes = timed(command)
    utterances = sum(map(lines, (root / "data").glob("*/text")))
    return Step(name, 1, utterances, seconds, megabytes)


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command of the package; return its seconds and its largest process's MB."""
    started = time.monotonic()
    module = f"espnet_distopt.bin.{command[0]}"
    process = subprocess.Popen([sys.executable, "-m", module, *command[1:]], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed: exit code {process.returncode}")
    print(f"{command[0]}: {seconds:.1f} s", flush=True)
    return seconds, usage.ru_maxrss / 1024


def own_megabytes() -> float:
    """Return the memory of this process, below which none of its children is seen."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    with path.open("rb") as file:
        return sum(1 for _ in file)


def triple(data: Path, dumped: Path) -> Path:
    """Write a set's text at three speeds, and numbers of samples, as stage 3 does."""
    dumped.mkdir(parents=True)
    with (
        (dumped / "text").open("w") as text,
        (dumped / "utt2num_samples").open("w") as samples,
    ):
        # In the order of the C locale `fe` comes before `sp`, and `sp` before `sw`.
        for prefix, start in (("", "fe"), *((copy, "") for copy in COPIES), ("", "sw")):
            with (data / "text").open() as said:
                for line in said:
                    if line.startswith(start):
                        text.write(prefix + line)
                        samples.write(f"{prefix}{line.split(maxsplit=1)[0]} 22240\n")
    return dumped


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


if __name__ == "__main__":
    main()
