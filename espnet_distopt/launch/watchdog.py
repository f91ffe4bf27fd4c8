"""Kills the launcher's process groups when the launcher is gone, however it died.

The launcher runs this file by itself, without the package. It writes `+PID` to stdin
for each process group that it has started, and `-PID` for each that has ended. If it is
killed, the pipe is closed, and this program kills all groups that are left.
"""

import os
import signal
import sys


def main() -> None:
    """Read the groups until the pipe is closed, then kill them."""
    groups: set[int] = set()
    while line := sys.stdin.readline():
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
