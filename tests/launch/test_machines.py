"""Two machines, emulated by namespaces: names of their own, and no disk in common."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import namespaces

from espnet_distopt.distributed import addresses
from espnet_distopt.launch import plan

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ROOT / "examples" / "train.py"

LAUNCHERS = {
    "launch": (
        *("espnet_distopt.bin.launch", "--nproc"),
        ("--master", "{address}:29500"),
    ),
    "torchrun": (
        *("torch.distributed.run", "--nproc_per_node"),
        ("--master_addr", "{address}", "--master_port", "29500"),
    ),
}
"""The module of each launcher, its option for processes, and those for the store."""

able = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.skipif(not able, reason="needs root, ip, tc and unshare")
@pytest.mark.parametrize(
    "launcher", ["launch", pytest.param("torchrun", marks=pytest.mark.thorough)]
)
def test_a_training_on_two_machines_whose_names_have_no_address(
    launcher: str, tmp_path: Path
) -> None:
    variables = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if launcher == "torchrun":
        # The launcher finds the interface; for torchrun the user must name it.
        variables["GLOO_SOCKET_IFNAME"] = "eth0"
    with namespaces.network(2, 1000) as places:
        subnet = places[0].store.rpartition(".")[0]
        started = []
        for number, place in enumerate(places):
            own = f'hostname no-address-{number}.invalid; exec "$@"'
            machine = ["ip", "netns", "exec", place.namespace, "unshare", "--uts"]
            program, processes, master = LAUNCHERS[launcher]
            launch = [sys.executable, "-m", program, processes, "2"]
            nodes = ["--nnodes", "2", "--node_rank", str(number)]
            master = [word.format(address=f"{subnet}.1") for word in master]
            train = [TRAIN, "--out", tmp_path / f"disk{number}", "--epochs", "1"]
            words = [*machine, "sh", "-c", own, "sh", *launch, *nodes, *master, *train]
            started.append(
                subprocess.Popen(
                    words,
                    env=variables,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            printed = [each.communicate(timeout=400)[0] for each in started]
        finally:
            for each in started:
                each.kill()
    assert [each.returncode for each in started] == [0, 0], "\n".join(printed)
    taken = re.findall(r"epoch 0 learner (\d): (\d+) batches", "\n".join(printed))
    assert sorted(rank for rank, _ in taken) == ["0", "1", "2", "3"]
    assert sum(int(batches) for _, batches in taken) == 64
    saved = {p.name for p in tmp_path.glob("disk0/*")}
    names = {f"epoch1.adpsgd.learner{rank}of4.pt" for rank in range(2)}
    assert saved == {*names, "model.pt"}


@pytest.mark.parametrize(
    ("named", "towards", "found"),
    [
        ("10.0.0.7", "10.0.0.1", None),  # gloo finds it by the name.
        (None, "10.0.0.1", "net0"),
        ("127.0.1.1", "10.0.0.1", "net0"),
        ("127.0.1.1", "127.0.0.1", None),  # All learners are on this machine.
    ],
)
def test_the_interface_that_gloo_is_told_of(
    named: str | None,
    towards: str,
    found: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(name: str, *rest: object, **more: object) -> list[object]:
        if named is None:
            raise OSError
        return [(0, 0, 0, "", (named, 0))]

    own = towards if towards.startswith("127.") else "10.0.0.7"
    interfaces = {"lo": "127.0.0.1", "net1": None, "net0": "10.0.0.7"}
    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(addresses, "host_towards", lambda host, port: own)
    monkeypatch.setattr(addresses, "_interfaces", lambda: list(interfaces))
    monkeypatch.setattr(addresses, "_address", interfaces.get)
    assert addresses.interface_for_gloo(towards, 29500) == found


@pytest.mark.parametrize(
    ("nodes", "environment", "told"),
    [
        (1, {}, {}),
        (2, {"GLOO_SOCKET_IFNAME": "ib0"}, {}),
        (2, {}, {"GLOO_SOCKET_IFNAME": "net0"}),
    ],
)
def test_the_users_interface_comes_first(
    nodes: int,
    environment: dict[str, str],
    told: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "interface_for_gloo", lambda host, port: "net0")
    made = plan.make_plan("2", nodes, 0, "10.0.0.1:29500", None, environment)
    assert plan.network_variables(made, environment) == told
