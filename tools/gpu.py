"""Run all that a GPU can tell, in eight minutes, and make a table of it (`make gpu`).

The parts are the tests of GPUs, a recipe with CTC and one with a hybrid system, each by
several algorithms whose learners share the GPU, and a benchmark. Each part has a limit
of time, its result is written as it ends, and nothing of it outlives the limit.

    make gpu                           # in the repository's own environment
    make gpu WHEELS=wheels             # no network: the Python there, and wheels
    make gpu DEVICE=cpu                # no GPU: a small version, to try the command
    python tools/gpu.py --page FOLDER  # docs/gpu.md from a run on another machine

The variables are options of this program, too, which needs nothing but Python.
"""

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"
PASSED, FAILED, UNENDED, SKIPPED = "passed", "failed", "did not end", "skipped"

ALGORITHMS = {
    "none": (1, "gloo", ""),
    "allreduce": (2, "nccl", ""),
    "adpsgd": (2, "gloo", ""),
    "hadpsgd": (4, "gloo", "--distopt_conf per_node=2"),
    "bmuf_adam": (2, "gloo", ""),
}
"""Algorithm -> the number of learners, what connects them, and more of its options."""

SECONDS = {"cuda": 470, "cpu": 3600}
"""Seconds that all parts have together. A GPU is lent for ten minutes, a CPU is not."""


@dataclass(frozen=True)
class Part:
    """A command with a limit of time.

    Attributes:
        name: what the table calls it.
        command: the program and its arguments.
        limit: seconds after which it is killed, with all that it has started; they are
            those of a machine with a GPU and 16 cores.
        folder: where it runs.
        needs: the part that must have passed before; none if it is empty.
        keep: a file that it writes, of which the results get a copy.
    """

    name: str
    command: Sequence[str]
    limit: float
    folder: Path = ROOT
    needs: str = ""
    keep: Path | None = None


@dataclass(frozen=True)
class Result:
    """How a part has ended, its seconds, and the line of its output that says most."""

    part: str
    result: str
    seconds: float
    says: str


class Runner:
    """Runs parts, and writes how each has ended.

    Args:
        out: the folder of the results.
        environment: the variables of all parts.
        seconds: the seconds that all parts have together.
        jobs: how many parts run at once, where they may.
        patience: how many times as long as its limit each part may take.
    """

    def __init__(
        self,
        out: Path,
        environment: dict[str, str],
        seconds: float,
        jobs: int,
        patience: float = 1.0,
    ) -> None:
        self.out, self.environment, self.jobs = out, environment, jobs
        self.end, self.patience = time.monotonic() + seconds, patience
        self.results: list[Result] = []
        self._lock, self._running, self._stopped = threading.Lock(), set[int](), False

    def passed(self, name: str) -> bool:
        """Return whether the part of a name has passed."""
        return any(e.part == name and e.result == PASSED for e in self.results)

    def run(self, *parts: Part) -> None:
        """Run parts, as many at once as there are jobs."""
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                list(pool.map(self._run, parts))
            except BaseException:  # Ctrl-C, or SIGTERM
                self._stopped = True
                for session in list(self._running):
                    kill_session(session)
                raise

    def _run(self, part: Part) -> None:
        """Run a part to its end or its limit."""
        begun = time.monotonic()
        limit = min(self.patience * part.limit, self.end - begun)
        if self._stopped or limit < 1:
            return self._note(part, UNENDED, 0, "no time was left")
        if part.needs and not self.passed(part.needs):
            return self._note(part, SKIPPED, 0, f"{part.needs}: see there")
        log = self.out / (re.sub(r"[^\w.]+", "_", part.name) + ".log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                part.command,
                cwd=part.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._running.add(process.pid)
        try:
            status = process.wait(limit)
            result = FAILED if status else PASSED
        except subprocess.TimeoutExpired:
            result = UNENDED
        kill_session(process.pid)
        process.wait()
        self._running.discard(process.pid)
        if part.keep is not None and part.keep.is_file():
            shutil.copy(part.keep, log.with_suffix(f".{part.keep.name}"))
        result, says = read_log(log, result)
        self._note(part, result, time.monotonic() - begun, says)

    def _note(self, part: Part, ended: str, seconds: float, says: str) -> None:
        result = Result(part.name, ended, round(seconds, 1), says[:300])
        with self._lock:
            self.results.append(result)
            with (self.out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            print(row(result), flush=True)


def kill_session(session: int) -> None:
    """Kill all processes of a session, which may be of many process groups."""
    while members := list(members_of(session)):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def members_of(session: int) -> Iterator[int]:
    """Yield the processes of a session that still run."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(state[3]) == session and state[0] not in "ZX":
                    yield int(folder.name)


def read_log(log: Path, result: str) -> tuple[str, str]:
    """Return the result of a part, and the line of its log that says most of it.

    Of tests that is how many passed, and which failed or did not end. Tests that were
    all left out are no success.
    """
    text = log.read_text(encoding="utf-8", errors="replace")

    def found(pattern: str) -> list[str]:
        return re.findall(pattern, text, re.MULTILINE)

    if begun := found(r"^(\S+\.py::\S+)"):
        ends = found(r"^(\S+::\S+) (?:PASSED|SKIPPED|FAILED|ERROR)")  # by pytest
        ends += found(r"^\[gw.*\] (?:PASSED|SKIPPED|FAILED|ERROR) (\S+)")  # by xdist
        bad = found(r"^(\S+::\S+) (?:FAILED|ERROR)")
        bad += found(r"^(?:\[gw.*\] )?(?:FAILED|ERROR) (\S+::\S+)")
        left_out = len(set(found(r"^(\S+::\S+) SKIPPED|^\[gw.*\] SKIPPED (\S+)")))
        whys = found(r"^SKIPPED \[\d+\] \S+ (.*)$") or ["skipped"]
        if result == PASSED and left_out == len(set(ends)):
            return SKIPPED, whys[0]
        says = [f"{len(set(ends)) - len(set(bad)) - left_out} passed"]
        says += [f"{left_out} {whys[0]}"] if left_out else []
        unended = set(begun).difference(ends)
        for what, names in (("failed", bad), ("did not end", unended)):
            short = sorted({name.split("::")[-1] for name in names})
            says += [f"{len(short)} {what}: {', '.join(short)}"] if short else []
        return result, "; ".join(says)
    told = [line for line in found(r"^.*\S.*$") if "NCCL INFO" not in line]
    told = told or ["nothing"]
    errors = found(r"^(?:\S+: )?error: .*$")
    return result, (errors[-1] if errors and result != PASSED else told[-1].strip())


def row(result: Result) -> str:
    """Return a line of the table."""
    says = result.says.replace("|", "/")
    shown = result.result if result.result == PASSED else f"**{result.result}**"
    return f"| {result.part} | {shown} | {result.seconds:.0f} | {says} |"


@dataclass(frozen=True)
class Recipe:
    """A recipe whose learners share the GPU.

    Attributes:
        name: what the table calls it.
        folder: the copy of the recipe in which it runs.
        system: ctc or hybrid.
        small: whether it only tries the commands, on a CPU.
    """

    name: str
    folder: Path
    system: str
    small: bool

    def run(self, *options: str) -> list[str]:
        """Return the command of some stages."""
        nj, place = (2, "") if self.small else (4, "--ngpu 1 --share_gpu true")
        best_path = "--decode_config ../../../conf/decode_best_path.yaml"
        # A learner that dies is not to come back unnoticed.
        words = (
            f"./run.sh --system {self.system} --nj {nj} {place} --restarts 0 "
            f"{best_path if self.system == 'ctc' else ''} --slow '' --picture '' "
            "--next '' --inference_asr_model valid.loss.best.pth"
        )
        return [*shlex.split(words), *options]

    def data(self) -> Part:
        """Return the part that makes all that a training needs."""
        sizes = "--conversations 12 --test_conversations 2 --turns 40 --speakers 24"
        if self.small:
            sizes = "--conversations 6 --test_conversations 1 --turns 20 --speakers 12"
        sizes += " --topics 1 --alternatives 1"
        synthetic = [] if "fsdd" in self.folder.parts else ["--local_data_opts", sizes]
        command = self.run("--stop_stage", "10", *synthetic)
        return Part(f"{self.name}: data", command, 200, self.folder)

    def trainings(self) -> dict[str, Part]:
        """Return the training by each algorithm."""
        few = "--max_epoch 1 --num_iters_per_epoch 20"
        much = few if self.small else "--max_epoch 2"
        kind = "asr" if self.system == "ctc" else self.system
        found = {}
        for name, (learners, backend, options) in ALGORITHMS.items():
            backend = "gloo" if self.small else backend
            args = f"{much} --dist_backend {backend} {options}".strip()
            command = self.run("--stage", "11", "--stop_stage", "11", "--distopt", name)
            command += ["--nlearners", str(learners), "--train_args", args]
            log = self.folder / "exp" / f"{kind}_{name}_{learners}" / "train.log"
            title = f"{self.name}: {name}, {learners} of {backend}"
            title = title if learners > 1 else f"{self.name}: {name}"
            needs = f"{self.name}: data"
            found[name] = Part(title, command, 150, self.folder, needs, log)
        return found

    def decodings(self, trained: Sequence[str]) -> dict[str, Part]:
        """Return the decoding by what each training has made."""
        found = {}
        for name in trained:
            chosen = [
                "--distopt",
                name,
                "--nlearners",
                str(max(2, ALGORITHMS[name][0])),
            ]
            command = self.run("--stage", "12", "--stop_stage", "12", *chosen)
            title = f"{self.name}: decoding, {name}"
            found[name] = Part(title, command, 150, self.folder)
        return found

    def table(self, decoded: Sequence[str]) -> Part:
        """Return the part that scores what has been decoded."""
        calls = []
        for number in (2, 4):
            names = [n for n in decoded if max(2, ALGORITHMS[n][0]) == number]
            chosen = ["--distopt", " ".join(names), "--nlearners", str(number)]
            calls += [shlex.join(self.run("--stage", "13", *chosen))] if names else []
        script = " && ".join(calls) or "echo error: nothing was decoded; false"
        report = self.folder / "exp" / "RESULTS.md"
        command = ["bash", "-c", script]
        return Part(f"{self.name}: table", command, 100, self.folder, keep=report)


def copies(work: Path, *names: tuple[str, str]) -> list[Path]:
    """Return copies of recipes, so that a run meets no data or experiments of the user.

    Args:
        work: the folder in which to make them, beside links to what they use.
        names: the name of each copy, and of its recipe.
    """
    for each in ("conf", "local", "tools", "espnet_distopt"):
        (work / each).symlink_to(ROOT / each)
    made = shutil.ignore_patterns("data", "dump", "exp", "corpus", "downloads")
    for copy, name in names:
        shutil.copytree(
            ROOT / "egs" / name, work / "egs" / copy, symlinks=True, ignore=made
        )
    return [work / "egs" / copy / "asr1" for copy, _ in names]


def run_all(runner: Runner, device: str, work: Path) -> None:
    """Run all parts, the most telling first."""
    small = device == "cpu"
    speech = "fsdd" if runner.environment.get("FSDD") else "mini_swbd"
    ctc, hybrid = copies(work, (speech, speech), ("mini_swbd_hybrid", "mini_swbd"))
    of_ctc = Recipe(f"{speech} by CTC", ctc, "ctc", small)
    of_hybrid = Recipe("mini_swbd, hybrid", hybrid, "hybrid", small)
    tests = []
    for file in sorted((ROOT / "tests").rglob("test_gpu.py")):
        name = str(file.relative_to(ROOT))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", name]
        workers = str(max(1, 3 * (os.cpu_count() or 1) // 8))
        command += [] if small else ["-n", workers, "--timeout", "100"]
        tests.append(Part(name, command, 160))
    runner.run(*tests, of_ctc.data(), of_hybrid.data())

    def passed(parts: dict[str, Part]) -> list[str]:
        return [name for name, part in parts.items() if runner.passed(part.name)]

    by_ctc, by_hybrid = of_ctc.trainings(), of_hybrid.trainings()
    runner.run(*by_ctc.values(), *by_hybrid.values())
    by_ctc = of_ctc.decodings(passed(by_ctc))
    by_hybrid = of_hybrid.decodings(passed(by_hybrid))
    runner.run(*by_ctc.values(), *by_hybrid.values())
    runner.run(of_ctc.table(passed(by_ctc)), of_hybrid.table(passed(by_hybrid)))

    benchmark = [sys.executable, "benchmarks/gpu.py", "--device", device]
    benchmark += ["--out", str(runner.out), "--turns", "1"]
    benchmark += ["--quick"] if small else []
    runner.run(Part("benchmarks/gpu.py", benchmark, 180))  # alone, as it is timed


def install(wheels: Path, folder: Path, log: Path) -> None:
    """Install into a folder the wheels of what this Python does not have.

    So what the machine has stays as its users have it.
    """
    wanted = []
    for wheel in sorted(wheels.glob("*.whl")):
        try:
            metadata.version(wheel.name.split("-")[0])
        except metadata.PackageNotFoundError:
            wanted.append(str(wheel))
    if not wanted:
        return
    quiet = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "-q"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(folder)]
    with log.open("wb") as file:
        done = subprocess.run(
            [*command, *wanted], stdout=file, stderr=file, check=False
        )
    if done.returncode:
        sys.exit(f"error: {wheels}: pip cannot install these wheels: see {log}")


def about(device: str, environment: dict[str, str]) -> str:
    """Return when, where and of what this run is, in one line."""

    def said(*command: str) -> str:
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    code = "from importlib.metadata import distributions as found\n"
    code += "wanted = {'torch', 'espnet', 'lightning', 'transformers'}\n"
    code += "every = {each.name: each.version for each in found()}\n"
    code += "print(*(f'{n} {v}' for n, v in every.items() if n in wanted), sep=', ')"
    query = "--query-gpu=name,driver_version"
    card = said("nvidia-smi", query, "--format=csv,noheader").replace("\n", "; ")
    git = said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10")
    facts = [str(date.today()), card if device == "cuda" else "no GPU"]
    facts += [f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    facts += [said(sys.executable, "-c", code)]
    return ", ".join([*facts, f"commit {os.environ.get('COMMIT') or git or 'unknown'}"])


def table(out: Path) -> str:
    """Return the table of a run, and those of its recipes, from its folder."""
    heading, *lines = (out / "results.jsonl").read_text(encoding="utf-8").splitlines()
    text = [f"`make gpu` of {json.loads(heading)['about']}:", ""]
    text += ["| part | result | seconds | its last words |", "|---|---|--:|---|"]
    text += [row(Result(**json.loads(line))) for line in lines]
    for report in sorted(out.glob("*_table.RESULTS.md")):
        first = report.read_text(encoding="utf-8").partition("\n## ")[0].splitlines()
        text += ["", *(line for line in first if line.startswith("|"))]
    return "\n".join(text) + "\n"


def fill_page(page: Path, new: str) -> None:
    """Replace the table of a page, which stands between two marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- make gpu -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        sys.exit(f"error: {page}: it has no place for the table of make gpu")
    page.write_text(before + begin + new + end + after, encoding="utf-8")


def get_parser() -> argparse.ArgumentParser:
    """Return the parser; the variables of make are its defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given = os.environ.get
    parser.add_argument("--device", choices=SECONDS, default=given("DEVICE") or "cuda")
    parser.add_argument("--wheels", type=Path, default=given("WHEELS") or None)
    parser.add_argument("--out", type=Path, default=given("OUT") or "build/gpu")
    parser.add_argument("--page", type=Path, metavar="FOLDER")
    return parser


def main(cmd: Sequence[str] | None = None) -> int:
    """Run all parts; return 1 if one has failed or did not end."""
    args = get_parser().parse_args(cmd)
    if args.page:
        fill_page(PAGE, table(args.page))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*_table.RESULTS.md"):
        old.unlink()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="make_gpu.") as work:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        if args.wheels:
            install(args.wheels, Path(work, "site"), out / "install.log")
            paths.append(str(Path(work, "site")))
        environment = os.environ | {
            "PYTHONPATH": ":".join(paths),
            "PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        if environment.get("FSDD"):
            environment["FSDD"] = str(Path(environment["FSDD"]).resolve())
        seen = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        if args.device == "cuda" and subprocess.call(
            [sys.executable, "-c", seen], env=environment
        ):
            sys.exit("error: PyTorch sees no GPU; DEVICE=cpu tries the commands")
        heading = json.dumps({"about": about(args.device, environment)})
        (out / "results.jsonl").write_text(heading + "\n", encoding="utf-8")
        left = SECONDS[args.device] - (time.monotonic() - begun)
        jobs = max(1, (os.cpu_count() or 1) // 3)
        patience = 1.0 if args.device == "cuda" else 4.0
        runner = Runner(out, environment, left, jobs, patience)
        run_all(runner, args.device, Path(work))
    text = table(out)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n{time.monotonic() - begun:.0f} s; results in {out}")
    if args.device == "cuda":
        fill_page(PAGE, text)
    return int(any(each.result in (FAILED, UNENDED) for each in runner.results))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # Its parts have ended.
        sys.exit(130)
