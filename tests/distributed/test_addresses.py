"""The addresses at which learners reach each other."""

from pathlib import Path

import pytest

from espnet_distopt.distributed import addresses

STORE = "127.0.0.1", 29500


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    """That of a learner on the machine of the store."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(
        addresses,
        "host_towards",
        lambda host, _: host if host == STORE[0] else "10.0.0.1",
    )
    return addresses.own_address(4000, STORE)


def test_learners_of_one_machine_meet_on_its_loopback(address: str) -> None:
    assert addresses.reachable(address) == ("127.0.0.1", 4000)


def test_a_machine_of_the_same_name_is_another_one(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its own loopback nobody listens, as if the other process had died."""
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(addresses, "_BOOT", boot)
    assert addresses.reachable(address) == ("10.0.0.1", 4000)
