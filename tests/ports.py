"""Ports for the processes of tests that open them later."""

import random
import socket

from espnet_distopt.distributed import slurm_step


def free_ports(count: int) -> list[int]:
    """Return ports that neither Slurm's jobs (`slurm_step`) nor a system's clients use.

    A port that the system chooses can be a client's before its user opens it. These are
    below the range from which it chooses, and no seed of another test, which another
    run may have set as well, decides on them.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(10000, slurm_step.FIRST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports
