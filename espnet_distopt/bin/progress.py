"""How far a command's work is, for those who watch it."""


class ProgressLine:
    """Prints a line of every so many units of work that are done."""

    def __init__(self, units: str, every: int) -> None:
        """Name what is counted, such as "lines"; give the number between two lines."""
        self._units, self._every, self._next = units, every, every

    def __call__(self, done: int, total: int) -> None:
        """Say how many are done; they may be many more than the last time."""
        if done >= self._next:
            print(f"{self._units}: {done} of {total}", flush=True)
            self._next = done - done % self._every + self._every
