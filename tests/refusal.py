"""Bad input is refused in one line, by a reader and by a command."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError, Main

Refused = Callable[..., str]
"""What the fixture `refused` of some folders gives: it calls, and returns the error."""


def refuses(
    read: Callable[[Path], object],
    path: Path,
    content: str | bytes | None,
    message: str,
) -> None:
    """A reader refuses a file of this content (None: there is no file).

    Args:
        read: the reader.
        path: the file; it may be there already, and then is not for `None`.
        content: text is written as UTF-8.
        message: a pattern of what stands behind the path, as ":3: expected".
    """
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as refusal:
        read(path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


def error_of(
    main: Main, cmd: Sequence[str], capture: pytest.CaptureFixture[str]
) -> str:
    """The one line by which a command refuses its input, without `error: `."""
    capture.readouterr()
    with pytest.raises(SystemExit) as end:
        main(cmd)
    assert end.value.code == 2
    error = capture.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ").rstrip("\n")
