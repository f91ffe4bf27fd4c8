"""gloo listens where the other learners reach it, or says where it listens."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from emulated import namespaces

from espnet_distopt.distributed import gloo
from espnet_distopt.distributed.gloo import host_for_gloo

ROOT = Path(__file__).resolve().parents[2]
ONE, ANOTHER = "m1/7 127.0.0.1 4000", "m2/8 10.0.0.2 4000"


@pytest.mark.parametrize(
    ("named", "towards", "learners", "found"),
    [
        ("10.0.0.7", "10.0.0.7", [], None),  # gloo finds it by the name.
        ("127.0.1.1", "10.0.0.7", [], "10.0.0.7"),
        ("127.0.1.1", "127.0.0.1", [ONE, ONE], None),  # All are on this machine.
        ("127.0.1.1", "127.0.0.1", [ONE, ANOTHER], "10.0.0.9"),  # It has the store.
    ],
)
def test_the_address_at_which_gloo_listens(
    named: str,
    towards: str,
    learners: list[str],
    found: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(gloo, "named_host", lambda: named)
    monkeypatch.setattr(gloo, "store_address", lambda store: ("n1", 29500))
    monkeypatch.setattr(gloo, "host_towards", lambda host, port: towards)
    monkeypatch.setattr(gloo, "outward_host", lambda: "10.0.0.9")
    assert host_for_gloo(None, lambda: learners) == found
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert host_for_gloo(None, lambda: learners) is None, "the user has chosen"


def test_torch_may_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(dist.ProcessGroupGloo, "create_default_device")
    group = gloo.make_group(dist.HashStore(), 0, 1, gloo.timedelta(minutes=1), None)
    assert group.size() == 1
    assert "as torch has changed" in caplog.text


LEARNER = """
import os
import sys
import torch
import torch.distributed as dist

from espnet_distopt.session import Session

# As with NCCL, the default process group connects nobody yet.
os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
dist.init_process_group("gloo")
os.environ.update(word.split("=") for word in sys.argv[1:])
model = torch.nn.Linear(2, 1)
with Session(model, torch.optim.SGD(model.parameters(), lr=0.1), "local_sgd") as run:
    print(run.mean(float(run.learner.rank)))
assert os.environ["TORCH_GLOO_LAZY_INIT"] == "1", "it is the user's"
"""


def on_two_machines(tmp_path: Path, *chosen: str) -> list[tuple[int, str]]:
    """Return status and output of a learner on each of two machines.

    The names of these machines mean the loopback.

    Args:
        tmp_path: a folder for files.
        chosen: variables that the learners set once they have a process group.
    """
    variables = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    with namespaces.network(2, 1000) as places:
        master = places[0].store.rpartition(".")[0] + ".1"
        variables |= {"MASTER_ADDR": master, "MASTER_PORT": "29500"}
        started = []
        for rank, place in enumerate(places):
            hosts = tmp_path / f"hosts{rank}"
            hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 machine{rank}\n")
            own = f'mount --bind {hosts} /etc/hosts; hostname machine{rank}; exec "$@"'
            machine = ["ip", "netns", "exec", place.namespace or ""]
            machine += ["unshare", "--uts", "--mount", "sh", "-c", own, "sh"]
            started.append(
                subprocess.Popen(
                    [*machine, sys.executable, "-c", LEARNER, *chosen],
                    env=variables | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            printed = [each.communicate(timeout=100)[0] for each in started]
        finally:
            for each in started:
                each.kill()
    return [(e.returncode, out) for e, out in zip(started, printed, strict=True)]


able: Any = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))
emulated = pytest.mark.skipif(not able, reason="needs root, ip, tc and unshare")


@emulated
@pytest.mark.processes
def test_a_session_of_machines_whose_names_mean_the_loopback(tmp_path: Path) -> None:
    for status, printed in on_two_machines(tmp_path):
        assert status == 0, printed
        assert "0.5" in printed


@emulated
@pytest.mark.processes
def test_the_users_interface_counts_and_an_error_names_it(tmp_path: Path) -> None:
    found = on_two_machines(tmp_path, "GLOO_SOCKET_IFNAME=lo")
    assert [status for status, _ in found] == [1, 1]
    said = "".join(printed for _, printed in found)
    assert "remote=[127.0.0.1]" in said
    assert "(this learner listens at lo; GLOO_SOCKET_IFNAME names the interface" in said
