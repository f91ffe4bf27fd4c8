"""The settings file: what it means, and every way to get it wrong."""

from pathlib import Path

import pytest

from espnet_distopt.cluster.settings import KEYS, STAGES, Settings, read_settings
from espnet_distopt.errors import InputError

SHIPPED = Path(__file__).parents[2] / "conf/slurm.yaml"


def read(tmp_path: Path, text: str | bytes, stage: str = "train") -> Settings:
    path = tmp_path / "slurm.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_settings(path, stage)


def test_a_section_overrides_the_top(tmp_path: Path) -> None:
    text = """
partition: gpu,long
time: 1-00:00:00
gpus_per_node: 8
prologue: ["module load cuda"]
decode: {partition: cpu, gpus_per_node: 0, prologue: []}
"""
    assert read(tmp_path, text) == Settings(
        partition="gpu,long",
        time="1-00:00:00",
        gpus_per_node=8,
        prologue=("module load cuda",),
    )
    assert read(tmp_path, text, "decode") == Settings(
        partition="cpu", time="1-00:00:00"
    )


def test_extra_options_of_sbatch(tmp_path: Path) -> None:
    options = ("--exclude=n7", "--timeout=9", "-x n8", "--gres=gpu:2", "--time-min=5")
    assert read(tmp_path, f"extra: {list(options)}\n").extra == options


@pytest.mark.parametrize("text", ["", "# nothing\n", "train:\n", "partition:\n"])
def test_nothing_is_asked_for(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == Settings()


@pytest.mark.parametrize(
    "time", ["90", "1:30:00", "2-12", "2-00:00:00", "UNLIMITED", "0", "3", "0:03:00"]
)
def test_time_is_taken_as_written(tmp_path: Path, time: str) -> None:
    assert read(tmp_path, f"time: {time}\n").time == time


def test_the_shipped_file() -> None:
    for stage in STAGES:
        again = 10 if stage in ("train", "lm") else 2
        assert read_settings(SHIPPED, stage) == Settings(requeues=again)
    text = SHIPPED.read_text()
    assert all(f"{key}:" in text for key in {*KEYS, *STAGES} - {"nodes"})


BAD = {
    "unknown key": ("nodes: 1\npartitions: gpu\n", ":2: unknown key 'partitions'"),
    "unknown section": ("eval: {nodes: 1}\n", ":1: unknown key 'eval'"),
    "unknown key in a section": ("train:\n  gpu: 1\n", ":2: unknown key 'gpu'"),
    "section in a section": ("train:\n  decode: {}\n", ":2: unknown key 'decode'"),
    "wrong in another section": ("other: {nodes: 0}\n", ":1: nodes must be a whole"),
    "twice": ("qos: a\nqos: b\n", ":2: qos appears twice, first in"),
    "key is a list": ("[a]: 1\n", ":1: unknown key '?'"),
    "a list": ("- partition\n", ":1: expected `key: value` lines"),
    "a word": ("gpu\n", ":1: expected `key: value` lines"),
    "section is a word": ("train: gpu\n", ":1: expected `key: value` lines"),
    "not YAML": ("partition: [gpu\n", "slurm.yaml: "),
    "a tab": ("train:\n\tnodes: 1\n", "line 2"),
    "not UTF-8": (b"partition: \xff\n", "slurm.yaml: "),
    "no nodes": ("nodes: 0\n", "nodes must be a whole number from 1"),
    "half a node": ("nodes: 1.5\n", "nodes must be a whole number from 1"),
    "negative": ("gpus_per_node: -1\n", "gpus_per_node must be a whole number from 0"),
    "a number in words": ("cpus_per_task: two\n", "cpus_per_task must be a whole"),
    "a list of nodes": ("nodes: [n1, n2]\n", "nodes must be a whole number from 1"),
    "memory": ("mem_per_cpu: 4 GB\n", "mem_per_cpu must be megabytes"),
    "time in words": ("time: 2 days\n", "time must be minutes, h:mm:ss"),
    # To Slurm 2:00 is two minutes. A job was told to stop as soon as it had started.
    "minutes that look like hours": ("time: 2:00\n", ":1: time must be minutes, h:mm"),
    "half an hour or 12 hours": ("time: 12:30\n", ":1: time must be minutes, h:mm:ss"),
    "shorter than the signal": (
        "time: 2\nsignal_seconds: 120\n",
        ":1: time: 2 is 120 s, and signal_seconds stops the job 120 s before its end: "
        "allow at least 3 minutes, or lower signal_seconds",
    ),
    "hardly longer": ("time: 0:02:59\n", ":1: time: 0:02:59 is 179 s, and signal_s"),
    "a signal of its stage": (
        "time: 1-00:00:00\ntrain:\n  signal_seconds: 3600\n  time: 0-1\n",
        ":4: time: 0-1 is 3600 s, and signal_seconds stops the job 3600 s before",
    ),
    "the time of all, the signal of its stage": (
        "time: 1:00:00\ntrain: {signal_seconds: 3590}\n",
        ":1: time: 1:00:00 is 3600 s",
    ),
    "two words": ("partition: gpu long\n", "partition must be one word"),
    "partitions in a list": ("partition: [gpu]\n", "partition must be one word"),
    "no dashes": ("extra: [exclude=n7]\n", "extra must be a list of options"),
    "extra is a mapping": ("extra: {exclude: n7}\n", "extra must be a list of options"),
    "a setting among the extra": (
        'extra: ["--time=1:00"]\n',
        "extra must be a list of",
    ),
    "its letter": ("extra: [-t5]\n", "and none that is a setting of its own"),
    "another signal": (
        "extra: [--signal=B:TERM@9]\n",
        "or that the batch script needs",
    ),
    "never requeued": ("extra: [--no-requeue]\n", "or that the batch script needs"),
    "half the log": ('extra: ["--error x.log"]\n', "or that the batch script needs"),
    "lines in a line": ('prologue: ["a\\nb"]\n', "prologue must be a list of shell"),
    "prologue of lists": ("prologue: [[a]]\n", "prologue must be a list of shell"),
    "never a signal": ("signal_seconds: 0\n", "signal_seconds must be a number of"),
    "signal too early": ("signal_seconds: 90000\n", "signal_seconds must be a number"),
    "no_kill": ("no_kill: 1\n", "no_kill must be true or false"),
    "requeues": ("requeues: always\n", "requeues must be a whole number from 0"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_settings(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "slurm.yaml"))
    assert "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_settings(tmp_path / "slurm.yaml", "train")
