"""The process that keeps the store."""

import resource
import subprocess
import sys

LIMITED = """\
import resource
from espnet_distopt.launch.store_process import allow_many_connections
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_many_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_store_may_have_as_many_connections_as_the_system_allows() -> None:
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert done.stdout.split() == [str(most), str(most)]
