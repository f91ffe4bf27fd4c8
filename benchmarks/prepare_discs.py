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
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from discs.writing import Size, make_discs
from report import ROOT, write_report

COPIES = ("sp0.9-", "sp1.1-")
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
        cpu_seconds: The processor time of all its processes.
        megabytes: The memory of its largest process, at least that of this benchmark.
    """

    step: str
    processes: int
    utterances: int
    seconds: float
    cpu_seconds: float
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
        "| stage | processes | utterances | seconds | CPU seconds | MB of a process |",
        "|:--|---:|---:|---:|---:|---:|",
        *map(row, steps),
    ]
    conversations = full.switchboard + full.fisher + full.evaluation
    caption = (
        f"Data stages on synthetic discs of {conversations} conversations, first "
        "with all text and no audio, then with short audio. Memory is the most that "
        f"the largest process had, or {own_megabytes():.0f} MB, those of the "
        "benchmark. On a busy machine processor time tells more than time."
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


def row(step: Step) -> str:
    """Return a row of the table."""
    figures = (step.seconds, step.cpu_seconds, step.megabytes)
    cells = (step.step, step.processes, step.utterances, *map("{:.0f}".format, figures))
    return f"| {' | '.join(map(str, cells))} |"


def of_all_text(root: Path, size: Size, nj: int) -> list[Step]:
    """Time stage 1, and stage 10 on three times its training set."""
    make_discs(root, size)
    steps = [prepare(root, "1 data: all text")]
    train, dev = (
        triple(root / "data" / name, root / "dump" / name)
        for name in ("train_all", "train_dev")
    )
    command = ["speech_shapes", "--train", str(train), "--valid", str(dev)]
    command += ["--token_type", "word", "--nj", str(nj), "--out", str(root / "stats")]
    used = timed(command)
    written = lines(train / "text") + lines(dev / "text")
    return [*steps, Step("10 lengths: all text, 3 speeds", nj, written, *used)]


def of_short_audio(root: Path, size: Size, nj: int) -> list[Step]:
    """Time stages 1 and 3, the latter at three speeds."""
    make_discs(root, size)
    steps = [prepare(root, "1 data: short audio")]
    target = root / "dump" / "train_all"
    command = ["format_data", str(root / "data" / "train_all"), str(target)]
    used = timed([*command, "--nj", str(nj), "--speed_factors", "0.9 1.0 1.1"])
    written = lines(target / "text")
    return [*steps, Step("3 format: short audio, 3 speeds", nj, written, *used)]


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
    used = timed(command)
    utterances = sum(map(lines, (root / "data").glob("*/text")))
    return Step(name, 1, utterances, *used)


def timed(command: list[str]) -> tuple[float, float, float]:
    """Run a command of the package.

    Returns:
        Its seconds, its processor time in seconds, and the MB of its largest process.
    """
    started = time.monotonic()
    module = f"espnet_distopt.bin.{command[0]}"
    process = subprocess.Popen([sys.executable, "-m", module, *command[1:]], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed: exit code {process.returncode}")
    print(f"{command[0]}: {seconds:.1f} s", flush=True)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


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


if __name__ == "__main__":
    main()
