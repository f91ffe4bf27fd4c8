"""Two machines, emulated by namespaces: names of their own, and no disk in common."""

import re
import sys
from pathlib import Path

import pytest

from espnet_distopt.distributed import addresses
from espnet_distopt.launch import plan
from tests.machines import ROOT, emulated, on_two_machines

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


@pytest.mark.processes
@pytest.mark.timeout(900)
@emulated
@pytest.mark.parametrize(
    "launcher", ["launch", pytest.param("torchrun", marks=pytest.mark.thorough)]
)
def test_a_training_on_two_machines_whose_names_have_no_address(
    launcher: str, tmp_path: Path
) -> None:
    def words(number: int, address: str) -> list[object]:
        program, processes, options = LAUNCHERS[launcher]
        nodes = ["--nnodes", "2", "--node_rank", str(number)]
        master = [word.format(address=address) for word in options]
        train = [TRAIN, "--out", tmp_path / f"disk{number}", "--epochs", "1"]
        return [sys.executable, "-m", program, processes, "2", *nodes, *master, *train]

    # The launcher finds the interface; for torchrun the user must name it.
    named = {"GLOO_SOCKET_IFNAME": "eth0"} if launcher == "torchrun" else {}
    found = on_two_machines(words, "hostname no-address-{}.invalid".format, named)
    printed = [out for _, out in found]
    assert [status for status, _ in found] == [0, 0], "\n".join(printed)
    taken = re.findall(r"epoch 0 learner (\d): (\d+) batches", "\n".join(printed))
    assert sorted(rank for rank, _ in taken) == ["0", "1", "2", "3"]
    assert sum(int(batches) for _, batches in taken) == 64
    saved = {p.name for p in tmp_path.glob("disk0/*")}
    names = {f"epoch1.adpsgd.learner{rank}of4.pt" for rank in range(2)}
    assert saved == {*names, "model.pt", "run.lock"}


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
