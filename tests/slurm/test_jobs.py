"""Jobs on a real Slurm: ranks, arrays, dependencies, and every way of being stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm.daemons import MiniSlurm

from espnet_distopt.simulation.cluster_file import read_cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TWO_BY_TWO = ("--nodes", "2", "--tasks_per_node", "2")
TRAINER = (sys.executable, "-S", str(HERE / "trainer.py"), ".")
Done = subprocess.CompletedProcess[str]


def start(name: str, *options: str, command: tuple[str, ...]) -> subprocess.Popen[str]:
    log = f"{name}.JOB.log" if "--array" in options else f"{name}.log"
    arguments = ("--name", name, "--log", log, *options, "--", *command)
    return subprocess.Popen(
        [sys.executable, "-m", "espnet_distopt.bin.slurm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        # a runner in the background of a shell ignores it, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ended(process: subprocess.Popen[str]) -> Done:
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(name: str, *options: str, command: tuple[str, ...]) -> Done:
    return ended(start(name, *options, command=command))


def submit(name: str, *options: str, command: tuple[str, ...]) -> str:
    done = run(name, *options, "--nowait", command=command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def trains(name: str, ranks: int = 4) -> Callable[[], bool]:
    log = Path(f"{name}.log")
    return lambda: log.exists() and log.read_text().count("from step") == ranks


def settings(**values: object) -> tuple[str, str]:
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())
    Path("slurm.yaml").write_text(text)
    return "--settings", "slurm.yaml"


def shown(cluster: MiniSlurm, job: str) -> str:
    return cluster.run("scontrol", "show", "job", "-o", job).stdout


def last_step(where: str = ".") -> list[int]:
    return [int(Path(where, f"state.{rank}").read_text()) for rank in range(4)]


def done_after(restarts: int, where: str = ".") -> bool:
    found = [Path(where, f"done.{rank}") for rank in range(4)]
    return all(path.read_text() == str(restarts) for path in found)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("tasks", "backend", "total"), [(4, "gloo", 6), (3, "", None)])
def test_ranks_on_two_nodes(tasks: int, backend: str, total: int | None) -> None:
    script = (sys.executable, str(HERE / "all_reduce.py"), ".", backend)
    each = settings(tasks_per_node=2)
    done = run("meet", *each, "--tasks", str(tasks), command=script)
    assert done.returncode == 0, done.stderr
    for rank in range(tasks):
        node = rank // 2
        assert json.loads(Path(str(rank)).read_text()) == {
            "RANK": rank,
            "WORLD_SIZE": tasks,
            "LOCAL_RANK": rank % 2,
            "LOCAL_WORLD_SIZE": min(2, tasks - 2 * node),
            "SLURM_NODEID": node,
            "sum": total,
        }


@pytest.mark.usefixtures("cluster")
def test_links_are_measured_in_a_job() -> None:
    script = ("-m", "espnet_distopt.bin.calibrate", "--message_seconds", "0.01")
    command = (sys.executable, *script, "--out", "cluster.yaml")
    done = run("links", *TWO_BY_TWO, command=command)
    assert done.returncode == 0, done.stderr
    assert read_cluster("cluster.yaml").network.per_node == 2


@pytest.mark.usefixtures("cluster")
def test_environment_is_that_of_the_prologue_not_of_the_submitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "of the submitter")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    prologue = settings(prologue=["export MODULE='a b'"])
    command = ("bash", "-c", 'echo "[${SECRET-}][$GLOO_SOCKET_IFNAME][$MODULE]"')
    assert run("environment", *prologue, command=command).returncode == 0
    assert "[][lo][a b]" in Path("environment.log").read_text()


@pytest.mark.usefixtures("cluster")
def test_array() -> None:
    command = ("bash", "-c", 'echo "part $1"; exit $(($1 == 2 ? 3 : 0))', "-", "JOB")
    done = run("part", "--array", "3%2", command=command)
    assert done.returncode == 3
    assert "error: task 2 of part" in done.stderr
    assert "exit status 3 on n" in done.stderr
    assert "    part 2\n" in done.stderr
    assert "full log: part.2.log" in done.stderr
    assert "part 3\n" in Path("part.3.log").read_text()


def test_dependencies(cluster: MiniSlurm) -> None:
    good = submit("good", command=("true",))
    bad = submit("bad", "--after", good, command=("sh", "-c", "sleep 1; exit 1"))
    after_bad = start("after_bad", "--after", bad, command=("touch", "wrong"))
    parts = start("parts", "--after", bad, "--array", "3%2", command=("true",))
    done = ended(after_bad)
    assert "COMPLETED" in shown(cluster, good)
    assert "FAILED" in shown(cluster, bad)
    assert done.returncode != 0
    assert "cancelled (DependencyNeverSatisfied)" in done.stderr
    said = ended(parts).stderr
    assert "task 1 of parts" in said
    assert "and 2 others: cancelled (DependencyNeverSatisfied)" in said
    assert not Path("wrong").exists()


def test_signal_requeues_and_the_job_goes_on(cluster: MiniSlurm) -> None:
    training = start("train", *TWO_BY_TWO, command=(*TRAINER, "30"))
    until(trains("train"))
    name = cluster.run("squeue", "-h", "-o", "%i").stdout.strip()
    waiting = submit("next", "--after", name, command=("true",))
    cluster.run("scancel", "--signal=USR1", name)
    done = ended(training)
    assert done.returncode == 0, done.stderr
    assert all(0 < step < 30 for step in last_step())
    assert done_after(1)
    log = Path("train.log").read_text()
    assert f"slurm: job {name} stopped (status 75): requeue 1 of at most 10" in log
    assert "restart 1 of at most 10" in log
    assert "PENDING (BeginTime)" in done.stdout
    assert "requeued: restart 1" in done.stdout
    until(lambda: "JobState=COMPLETED" in shown(cluster, waiting))


@pytest.mark.usefixtures("cluster")
def test_requeues_are_counted() -> None:
    kill = ("bash", "-c", '[ -n "${SLURM_RESTART_COUNT:-}" ] || kill -USR1 $$')
    before_it_listens = start("early", command=kill)
    endless = start("again", *settings(requeues=1), command=(*TRAINER, "30", "stop"))
    assert ended(before_it_listens).returncode == 0
    assert "stopped (status 138): requeue 1 of" in Path("early.log").read_text()
    assert ended(endless).returncode == 75
    assert Path("state.0").read_text() == "2"
    assert "after all 1 requeues" in Path("again.log").read_text()


def test_preemption(cluster: MiniSlurm) -> None:
    partitions = ("low", "sudden")
    trainings = []
    for name in partitions:
        Path(name).mkdir()
        where = settings(partition=name)
        command = (*TRAINER[:-1], name, "200")
        trainings.append(start(name, *TWO_BY_TWO, *where, command=command))
        until(Path(f"{name}.sbatch").exists)  # the settings were read
    for name in partitions:
        until(trains(name))
    cluster.run("sbatch", "-p", "high", "-N4", "--exclusive", "--wrap", "sleep 0.5")
    for name, training in zip(partitions, trainings, strict=True):
        done = ended(training)
        assert done.returncode == 0, done.stderr
        assert all(0 < step < 200 for step in last_step(name))
        assert done_after(1, name)


@pytest.mark.usefixtures("cluster")
def test_a_killed_task_ends_the_job_at_once() -> None:
    training = start("train", *TWO_BY_TWO, command=(*TRAINER, "300"))
    until(trains("train"))
    os.kill(int(Path("pid.3").read_text()), signal.SIGKILL)
    killed = time.monotonic()
    done = ended(training)
    assert time.monotonic() - killed < 15  # of thirty that it would train
    assert done.returncode == 137
    assert "rank 3 on n2 failed first: killed by SIGKILL" in done.stderr
    assert "    start 0: from step 0\n" in done.stderr
    assert len(done.stderr.splitlines()) < 20


@pytest.mark.usefixtures("cluster")
def test_what_can_never_run_is_refused() -> None:
    done = run("big", "--nodes", "9", command=("true",))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "error: big.sbatch: Slurm refused the job: " in done.stderr
    assert "Node count specification invalid" in done.stderr


def test_a_cancelled_job_saves_and_is_not_requeued(cluster: MiniSlurm) -> None:
    training = start("train", *TWO_BY_TWO, command=(*TRAINER, "300"))
    until(trains("train"))
    name = cluster.run("squeue", "-h", "-o", "%i").stdout.strip()
    cluster.run("scancel", name)
    done = ended(training)
    assert done.returncode != 0
    assert "cancelled" in done.stderr
    assert all(0 < step < 300 for step in last_step())
    until(lambda: "was stopped by Slurm" in Path("train.log").read_text())
    assert "JobState=CANCELLED" in shown(cluster, name)
    again = run("train", *TWO_BY_TWO, command=(*TRAINER, str(max(last_step()) + 1)))
    assert again.returncode == 0, again.stderr
    assert "was stopped by Slurm" in Path("train.1.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_cancels(cluster: MiniSlurm, number: signal.Signals) -> None:
    training = start("train", *TWO_BY_TWO, command=(*TRAINER, "300"))
    until(trains("train"))
    training.send_signal(number)
    done = ended(training)
    assert done.returncode == 130
    assert "(train) cancelled" in done.stderr
    assert not cluster.run("squeue", "-h").stdout


def test_a_killed_learner_is_started_again_in_its_place(cluster: MiniSlurm) -> None:
    worker = (sys.executable, str(ROOT / "tests/launch/worker.py"), ".")
    go_on = settings(tasks_per_node=2, no_kill=True)
    options = ("--tasks", "4", *go_on, "--restarts", "1")
    training = start("train", *options, command=(sys.executable, SURVIVOR, *worker))
    until(lambda: Path("survives").exists() and all(map(begun, range(4))))
    os.kill(pid(3), signal.SIGKILL)
    until(Path("3.1").exists)
    os.kill(pid(0), signal.SIGKILL)
    until(Path("0.1").exists)
    os.kill(pid(0), signal.SIGKILL)
    until(lambda: "learner 0 on n1 was killed by SIGKILL: it is lost" in log())
    Path("end").write_text("0")
    done = ended(training)
    assert done.returncode == 0, done.stderr
    assert "not with all learners: lost: learner 0 (n1); replaced: learner 3 " in log()
    assert cluster.run("squeue", "-h").stdout == ""


def test_a_node_that_fails_leaves_the_others(cluster: MiniSlurm) -> None:
    worker = (sys.executable, str(ROOT / "tests/launch/worker.py"), ".")
    go_on = settings(no_kill=True)
    options = ("--tasks", "3", *go_on)
    training = start("train", *options, command=(sys.executable, SURVIVOR, *worker))
    until(lambda: Path("survives").exists() and all(map(begun, range(3))))
    with cluster.crashed_node(int(Path("2.node").read_text()[1:])):
        until(
            lambda: "node 2 has gone silent: it is lost, and the others go on" in log()
        )
        Path("end").write_text("0")
        done = ended(training)
    assert "lost: learner 2 (node 2)" in log()
    assert done.returncode == 0, done.stderr + log()


SURVIVOR = str(HERE / "survivor.py")


def begun(rank: int) -> bool:
    return Path(f"{rank}.0").exists()


def pid(rank: int) -> int:
    return int(Path(f"{rank}.pids").read_text().split()[0])


def log() -> str:
    return Path("train.log").read_text()
