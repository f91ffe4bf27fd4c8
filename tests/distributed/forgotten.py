"""What a wait for gloo lasts for ever on, see `espnet_distopt.distributed.gloo`."""

import threading


class Forgotten:
    """An operation that gloo never ends."""

    def wait(self) -> None:
        threading.Event().wait()
