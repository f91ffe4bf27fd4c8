"""What the launcher writes, though a terminal may be gone or a pipe may be closed."""

import errno
import os
from typing import TextIO


def write_out(stream: TextIO, data: bytes) -> None:
    """Write to stdout or stderr at once, or to nowhere if nobody can read it any more.

    A launcher whose terminal is gone has learners that still save their state.

    Args:
        stream: `sys.stdout` or `sys.stderr`.
        data: whole lines.

    Raises:
        OSError: it cannot be written for another reason.
    """
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # What is in the buffer goes there, too.
        os.close(nowhere)
