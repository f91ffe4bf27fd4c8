"""Chunks from the work queue: a slow learner, a stop, and a death within an epoch."""

import hashlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from espnet_distopt.espnet.training.saving import load_learner
from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask
from tests.espnet.training import learners
from tests.recipes.models.hybrid.toy import arguments, write_toy_frames

FRAMES_OF_A_CHUNK = 7
BATCH = 8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("chunks")
    write_toy_frames(root, train=40)
    return root


def chunks_of(root: Path) -> Counter[str]:
    """Return utterance -> its number of chunks, of those that have some."""
    frames = read_table(root / "train/utt2num_frames", int)
    return Counter({name: n // FRAMES_OF_A_CHUNK for name, n in frames.items()})


class Record:
    """An injection: notes each chunk that is trained on; learner 1 can wait or stop.

    Args:
        folder: The notes are written there.
        waits: How many batches the learners have begun together before learner 1 makes
            its first step, or all if there are not so many.
        signals: What learner 1 then sends itself, if anything.
    """

    def __init__(
        self, folder: Path, waits: int = 0, signals: signal.Signals | None = None
    ) -> None:
        self.folder, self.waits, self.signals = folder, waits, signals

    def __call__(self, rank: int) -> None:
        from espnet_distopt.espnet.training.epoch import Epoch
        from espnet_distopt.session import Session

        # as outside of the tests: processes that read data have all imported already
        multiprocessing.set_start_method("fork", force=True)
        iterate, step = Epoch.__iter__, Session.step
        notes = self.folder / f"chunks.{rank}"

        def noting(epoch: Epoch):  # type: ignore[no-untyped-def]
            for names, batch in iterate(epoch):
                digests = [
                    hashlib.sha256(chunk.numpy().tobytes()).hexdigest()
                    for chunk in batch["speech"]
                ]
                with notes.open("a") as file:
                    pairs = zip(names, digests, strict=True)
                    file.write(";".join(f"{n} {d}" for n, d in pairs) + "\n")
                yield names, batch

        def stepping(session: Session) -> None:
            if session.learner.steps == 0:
                while len(batches(self.folder)) < self.waits:
                    time.sleep(0.01)
                if self.signals is not None:
                    os.kill(os.getpid(), self.signals)
            step(session)

        Epoch.__iter__ = noting  # type: ignore[method-assign]
        if rank == 1:
            Session.step = stepping  # type: ignore[method-assign]


def batches(folder: Path, learner: str = "*") -> list[list[str]]:
    """Return the chunks of each batch that has been trained on."""
    notes = folder.glob(f"chunks.{learner}")
    lines = [line for path in notes for line in path.read_text().splitlines()]
    return [line.split(";") for line in lines]


def assert_each_chunk_once(folder: Path, root: Path) -> None:
    read = [chunk for batch in batches(folder) for chunk in batch]
    assert len(set(read)) == len(read)
    assert Counter(chunk.split()[0] for chunk in read) == chunks_of(root)


def train(
    root: Path, folder: Path, record: Record, size: int = 2, *more: str
) -> list[int]:
    options = arguments(root, folder / "exp", "--max_epoch", "1", *more)
    options += ["--scheduler", "warmuplr"]
    meeting, log = folder / "meeting", folder / "log"
    meeting.unlink(missing_ok=True)
    task = DistoptHybridTask
    return learners.train(options, size, meeting, log, record, task=task)


TWO_NODES = ["--distopt_conf", "per_node=2"]
IN_MEMORY = ["--frames_in_memory", "1"]
ALGORITHMS = {
    "adpsgd": (2, ["--distopt", "adpsgd", "--num_workers", "1"]),
    "hadpsgd": (4, ["--distopt", "hadpsgd", *TWO_NODES, *IN_MEMORY]),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_others_take_the_chunks_of_a_slow_learner(
    algorithm: str, root: Path, tmp_path: Path
) -> None:
    size, options = ALGORITHMS[algorithm]
    steps = -(-chunks_of(root).total() // BATCH)
    # Learner 1 makes its first step when few batches are left.
    begun = steps * size - 8
    codes = train(root, tmp_path, Record(tmp_path, begun), size, *options)
    assert codes == [0] * size, learners.read(tmp_path / "log")
    assert_each_chunk_once(tmp_path, root)
    own = [len(batches(tmp_path, str(rank))) for rank in range(size)]
    assert sum(own) == steps * size
    slow, fast = own[1], own[-1] if algorithm == "hadpsgd" else own[0]
    assert slow < steps // 2 < steps < fast
    states = [load_learner(tmp_path / "exp", rank, 1) for rank in range(size)]
    made = [state["scheduler"]["last_epoch"] for state in states if state]
    assert made == [steps] * size


def test_a_stopped_epoch_goes_on_with_the_chunks_that_are_left(
    root: Path, tmp_path: Path
) -> None:
    _, options = ALGORITHMS["adpsgd"]
    record = Record(tmp_path, 6, signal.SIGTERM)
    assert train(root, tmp_path, record, 2, *options) == [75, 75], learners.read(
        tmp_path / "log"
    )
    stopped = len(batches(tmp_path))
    assert 6 <= stopped < 2 * -(-chunks_of(root).total() // BATCH)
    assert train(root, tmp_path, Record(tmp_path), 2, *options) == [0, 0]
    assert len(batches(tmp_path)) > stopped
    assert_each_chunk_once(tmp_path, root)


def test_the_chunks_of_a_dead_learner_are_trained_on_by_the_others(
    root: Path, tmp_path: Path
) -> None:
    record = Record(tmp_path, 6, signal.SIGKILL)
    options = ["--distopt", "adpsgd"]
    codes = train(root, tmp_path, record, 2, *options)
    assert codes == [0, -9], learners.read(tmp_path / "log")
    assert_each_chunk_once(tmp_path, root)
    said = learners.read(tmp_path / "log")
    assert "validated without a dead learner's share" not in said
    assert (tmp_path / "exp/1epoch.pth").exists()
