"""Machines in miniature, and what is left of them: nothing."""

import os
import shutil
import subprocess

import pytest
from emulated import namespaces

from espnet_distopt.errors import InputError

able = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
needs_root = pytest.mark.skipif(not able, reason="needs root, ip and tc")


def made() -> str:
    names = ["ip netns list", "ip -o link show type bridge"]
    outputs = [subprocess.check_output(n.split(), text=True) for n in names]
    return "".join(outputs)


def test_others_than_root_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="root"), namespaces.network(1, 100):
        pass


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "ip" else None)
    with pytest.raises(InputError, match="'tc' is missing"), namespaces.network(1, 100):
        pass


@needs_root
def test_nothing_is_left_after_an_error() -> None:
    name = f"bench{os.getpid()}"
    with pytest.raises(KeyError), namespaces.network(2, 100) as places:
        assert f"{name}-1" in made()
        assert [place.namespace for place in places] == [f"{name}-0", f"{name}-1"]
        raise KeyError
    assert name not in made()


@needs_root
def test_what_a_killed_run_left_is_removed() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    name = f"bench{child.pid}-0"
    subprocess.check_call(["ip", "netns", "add", name])
    assert name in made()
    with namespaces.network(1, 100):
        assert name not in made()
