"""A program that fails in a learner ends the run; a lost learner may be survived."""

import socket
import subprocess
import sys
from pathlib import Path

import kaldiio
import pytest
import soundfile

from espnet_distopt.bin import status
from tests.espnet.toy import arguments, write_toy_data
from tests.launch.launched import HERE, Launched, environment
from tests.ports import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
PROGRAM = str(HERE / "raises.py")
HOST = socket.gethostname()
TYPED = "NameError: a typing error"
SHOWN = f"[rank1]: {TYPED}"
"""The last line of the traceback; PyTorch writes the rank before each line."""
FAILED = (
    f"launch: the run failed: learner 1 on {HOST} ended with status 1 ({TYPED})",
    f"launch: the run failed: learner 0 on {HOST} ended with status 1 (learner 1 ended "
    f"with {TYPED})",
)
"""The verdict, whichever learner has ended first."""


@pytest.mark.parametrize(
    ("algorithm", "restarts"),
    [("adpsgd", "0"), ("bmuf", "0"), ("bmuf", "3"), ("allreduce", "0")],
)
def test_an_exception_in_one_learner_ends_the_run(
    tmp_path: Path, algorithm: str, restarts: str
) -> None:
    """A learner that joins in its place would make good for it; none can join bmuf.

    A replacement that was refused is not started again: it would be refused again.
    """
    options = ("--nproc", "2", "--restarts", restarts)
    what = f"{algorithm} raises"
    code, _, err = Launched(tmp_path, *options, program=PROGRAM, what=what).ended()
    assert code == 1
    assert err.count(SHOWN) == 1, "\n".join(err)
    assert err[-1] in FAILED
    started_again = [line for line in err if ": it is started again (" in line]
    assert len(started_again) == int(restarts != "0"), "\n".join(err)


def test_an_exception_ends_the_learners_of_all_nodes(tmp_path: Path) -> None:
    [port] = free_ports(1)
    words = ("--nproc", "1", "--nnodes", "2", "--master", f"127.0.0.1:{port}")
    both = [
        Launched(
            tmp_path,
            *(*words, "--node_rank", str(node)),
            program=PROGRAM,
            what="adpsgd raises",
        )
        for node in (0, 1)
    ]
    (first, _, said), (second, _, trace) = [node.ended() for node in both]
    assert (first, second) == (1, 1)
    assert trace.count(SHOWN) == 1
    assert said[-1] in FAILED


@pytest.mark.parametrize(("times", "expected"), [(1, 0), (2, 1)])
def test_what_is_started_again_must_end_well_at_last(
    tmp_path: Path, times: int, expected: int
) -> None:
    options = ("--nproc", "2", "--restarts", "1")
    what = f"adpsgd raises {times}"
    code, _, err = Launched(tmp_path, *options, program=PROGRAM, what=what).ended()
    assert code == expected, "\n".join(err)
    assert err.count(SHOWN) == times
    again = f"({TYPED}): it is started again (1 of at most 1)"
    assert f"launch: learner 1 on {HOST} ended with status 1 {again}" in err
    if expected:
        assert err[-1] in FAILED


def test_a_learner_that_the_others_have_given_up_is_lost(tmp_path: Path) -> None:
    """It ends by an exception, too, but its program has not failed."""
    run = Launched(tmp_path, "--nproc", "2", program=PROGRAM, what="adpsgd stalls")
    code, _, err = run.ended()
    assert code == 0, "\n".join(err)
    [lost] = [line for line in err if line.endswith("it is lost, and the others go on")]
    assert "(the others have given this learner up: " in lost


def trained(root: Path, algorithm: str) -> tuple[int, list[str]]:
    """Train on `wavs.scp` with two learners; return the status, and lines of stderr."""
    options = arguments(root, root / "exp", "--num_workers", "1")
    place = options.index(f"{root}/train/wav.scp,speech,kaldi_ark")
    options[place] = f"{root}/wavs.scp,speech,sound"
    ended = subprocess.run(
        [
            *[sys.executable, "-m", "espnet_distopt.bin.launch", "--nproc", "2", "-m"],
            *["espnet_distopt.bin.asr_train", "--distopt", algorithm, *options],
        ],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=250,
        check=False,
    )
    return ended.returncode, ended.stderr.splitlines()


def test_what_espnet_refuses_before_the_training_is_in_the_last_line(
    tmp_path: Path,
) -> None:
    write_toy_data(tmp_path)
    (tmp_path / "wavs.scp").write_text("twice a.wav\ntwice b.wav\n")
    code, err = trained(tmp_path, "bmuf")
    assert code == 1
    assert err[-1].startswith("launch: the run failed: learner ")
    assert " ended with status 1 (RuntimeError: twice is duplicated (" in err[-1]


@pytest.mark.parametrize("algorithm", ["adpsgd", "allreduce"])
def test_a_corrupt_file_ends_a_training_by_espnet(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Soundfile's error cannot be printed once it has come from a worker process."""
    write_toy_data(tmp_path)
    wavs = []
    for key, (rate, samples) in kaldiio.load_scp(f"{tmp_path}/train/wav.scp").items():
        soundfile.write(tmp_path / f"{key}.wav", samples, rate)
        wavs.append(f"{key} {tmp_path}/{key}.wav\n")
    corrupt = tmp_path / f"{key}.wav"
    corrupt.write_bytes(b"not a wav file")
    (tmp_path / "wavs.scp").write_text("".join(wavs))
    code, err = trained(tmp_path, algorithm)
    assert code in (1, 2)  # The other one is told, and may end first.
    said = f"LibsndfileError: Error opening '{corrupt}': Format not recognised."
    shown = [line for line in err if line.startswith("error: utterance")]
    assert len(shown) == 1 and said in shown[0], "\n".join(err)
    assert err[-1].startswith("launch: the run failed: ") and said in err[-1]
    status.main([str(tmp_path / "exp")])
    shown = capsys.readouterr().out.splitlines()
    assert any(": failed: " in line and said in line for line in shown), shown
