"""Two machines, emulated by namespaces: with names of their own, and a network."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from emulated import namespaces

ROOT = Path(__file__).resolve().parents[1]
_able = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "unshare")))
emulated = pytest.mark.skipif(not _able, reason="needs root, ip, tc and unshare")


def on_two_machines(
    words: Callable[[int, str], Sequence[object]],
    become: Callable[[int], str],
    variables: Mapping[str, str],
) -> list[tuple[int, str]]:
    """Run a command on each machine; return their statuses and what they have printed.

    Args:
        words: returns a machine's command, given its number and the address of the
            first one.
        become: returns what the shell does first on a machine: it gives it a name.
        variables: those of all commands, beside this process's.
    """
    kept = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    kept |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    with namespaces.network(2, 1000) as places:
        address = places[0].store.rpartition(".")[0] + ".1"
        started = []
        for number, place in enumerate(places):
            machine = ["ip", "netns", "exec", place.namespace, "unshare", "--uts"]
            machine += ["--mount", "sh", "-c", f'{become(number)}; exec "$@"', "sh"]
            started.append(
                subprocess.Popen(
                    [*machine, *words(number, address)],
                    env=kept,
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
    return [(e.returncode, out) for e, out in zip(started, printed, strict=True)]
