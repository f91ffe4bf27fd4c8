"""The module has a recipe directory for tests, and starts its scripts."""

import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def refusal(errors: str) -> str:
    """Return a single error line without `error: `."""
    assert errors.startswith("error: ") and errors.count("\n") == 1
    return errors.removeprefix("error: ").rstrip("\n")


@dataclass(frozen=True)
class Recipe:
    """A recipe directory, whose methods start its scripts."""

    directory: Path
    environment: Mapping[str, str]

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As in a terminal; whoever starts the tests in the background ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def asr(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run asr.sh, which must succeed."""
        done = self.ends(*options, **variables)
        assert done.returncode == 0, done.stderr
        return done

    def refused(self, *options: str, **variables: str) -> str:
        """Return the one line by which asr.sh refuses its options or files."""
        done = self.ends(*options, **variables)
        assert done.returncode == 2, done.stderr
        return refusal(done.stderr)

    def ends(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run asr.sh with the token type `word`, however it ends."""
        script = str(ROOT / "local" / "asr.sh")
        return self.run(script, "--token_type", "word", *options, **variables)

    def call(self, module: str) -> list[str]:
        """Return the arguments behind a module's name, in the only call of it."""
        [found] = [call for call in self.calls() if f".{module}" in call[1]]
        return found[2:]

    def calls(self) -> list[list[str]]:
        """Return the arguments of every call of `python` so far."""
        record = Path(self.environment["STUB_CALLS"])
        if not record.exists():
            return []
        return [json.loads(line) for line in record.read_text().splitlines()]

    def modules(self) -> list[str]:
        """Return the last part of the module that each call ran."""
        own = [takewhile(lambda word: word != "--", call) for call in self.calls()]
        return [
            [b for a, b in pairwise(call) if a == "-m"][-1].rpartition(".")[2]
            for call in own
        ]
