"""A private Slurm on this machine: munged, slurmctld and four slurmd, no systemd.

Everything lives in one directory, on ports that were free, as root or a plain user.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from getpass import getuser
from pathlib import Path

from tests.ports import free_ports

NODES = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
GRACE_SECONDS = 6
# The daemons are in sbin, which a plain user's PATH may lack.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# cred_expire: a requeued job starts again after 6 seconds rather than 121.
# EnforcePartLimits: what can never run is refused rather than kept pending.
SLURM_CONF = """\
ClusterName=mini
SlurmctldHost=localhost(127.0.0.1)
FirstJobId={first_job}
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobRequeue=1
KillWait=5
SlurmdTimeout=10
SlurmctldTimeout=10
ReturnToService=2
PropagateResourceLimits=NONE
PropagatePrioProcess=0
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
"""
NODE = (
    "NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1"
    " Port={port} CPUs=4 RealMemory=4000 State=UNKNOWN\n"
)
# `sudden` gives no grace: a preempted job has KillWait, five seconds.
PARTITIONS = (
    f"PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime={GRACE_SECONDS}"
    " MaxTime=INFINITE PreemptMode=REQUEUE\n"
    "PartitionName=sudden Nodes=ALL PriorityTier=1 GraceTime=0"
    " MaxTime=INFINITE PreemptMode=REQUEUE\n"
    "PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE PreemptMode=OFF\n"
)
# No use of cgroups, which a container may not have.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nIgnoreSystemd=yes\n"


def missing_programs() -> list[str]:
    """The programs of slurm-wlm and munge that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class MiniSlurm:
    """The daemons, and the client commands that speak to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environment: Mapping[str, str] = {
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith(("SLURM_", "SBATCH_"))
            },
            "SLURM_CONF": str(root / "etc/slurm.conf"),
        }

    def start(self) -> None:
        for name in ("etc", "munge", "state", "log", "run", "spool"):
            (self.root / name).mkdir(mode=0o755)
        self._write_configuration()
        munge = self.root / "munge"
        self._daemon(
            "munged",
            "--foreground",
            "--force",  # although others may not enter the tests' directory
            f"--key-file={munge / 'key'}",
            f"--socket={munge / 'socket'}",
            f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
            "--num-threads=2",
        )
        self._until("munged", lambda: (munge / "socket").exists())
        self._daemon("slurmctld", "-D", "-i")
        for number in range(1, NODES + 1):
            self._daemon("slurmd", "-D", "-N", f"n{number}")
        self._until("the nodes", lambda: len(self._idle_nodes()) == NODES)

    @contextmanager
    def crashed_node(self, number: int) -> Generator[None, None, None]:
        """Inside, a node is dead: its slurmd and all that this has started."""
        at = 1 + number  # munged and slurmctld come first
        slurmd = self.daemons[at]
        slurmd.kill()
        for step in self._steps_of(f"n{number}"):
            _kill_tree(step)
        try:
            yield
        finally:
            slurmd.wait()
            del self.daemons[at]
            self._daemon("slurmd", "-D", "-N", f"n{number}")
            self.daemons.insert(at, self.daemons.pop())
            self._until("the node", lambda: len(self._idle_nodes()) == NODES)

    def _steps_of(self, node: str) -> list[int]:
        """Return the pids of the processes that run the steps of a node."""
        found = self.run("pgrep", "-f", "^slurmstepd")
        children = map(_children, map(int, found.stdout.split()))
        ours = f"SLURMD_NODENAME={node}".encode()
        conf = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        steps = []
        for step, tasks in zip(map(int, found.stdout.split()), children, strict=True):
            said = b"".join(_environment(task) for task in tasks).split(b"\0")
            if ours in said and conf in said:
                steps.append(step)
        return steps

    def stop(self) -> None:
        """End the jobs, which would outlive the daemons, then the daemons."""
        try:
            self.cancel_all()
        finally:
            self._end_daemons()

    def _end_daemons(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def cancel_all(self) -> None:
        """Cancel every job, and wait until the nodes are free."""
        for state in ("PENDING", "RUNNING"):
            self.run("scancel", "--quiet", f"--state={state}", f"--user={getuser()}")
        self._until("the end of all jobs", lambda: not self.run("squeue", "-h").stdout)
        self._until("idle nodes", lambda: len(self._idle_nodes()) == NODES)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _write_configuration(self) -> None:
        key = self.root / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        ports = free_ports(NODES + 1)
        nodes = [NODE.format(number=i, port=ports[i]) for i in range(1, NODES + 1)]
        # Learners meet at a port that follows from the job's number, and each worker of
        # pytest-xdist has a cluster of its own.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
        first_job = 1 + 200 * int(worker)
        conf = SLURM_CONF.format(
            root=self.root, user=getuser(), ports=ports, first_job=first_job
        )
        etc = self.root / "etc"
        (etc / "slurm.conf").write_text(conf + "".join(nodes) + PARTITIONS)
        (etc / "cgroup.conf").write_text(CGROUP_CONF)

    def _daemon(self, *command: str) -> None:
        # pdeathsig: none is left when the tests themselves are killed
        self.daemons.append(
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                env={**self.environment, "PATH": PATH},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=(self.root / "log/stderr").open("ab"),
            )
        )

    def _idle_nodes(self) -> set[str]:
        listed = self.run("sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N")
        return set(listed.stdout.split())

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not is_so():
            ended = any(daemon.poll() is not None for daemon in self.daemons)
            if ended or time.monotonic() > deadline:
                said = (self.root / "log/stderr").read_text(errors="replace")[-2000:]
                raise TimeoutError(
                    f"Slurm: waited in vain for {what}; it said:\n{said}"
                )
            time.sleep(0.05)


def _children(process: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def _environment(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/environ").read_bytes()
    return b""


def _kill_tree(process: int) -> None:
    """Kill a process and all its descendants, the parents first."""
    children = _children(process)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    for child in children:
        _kill_tree(child)
