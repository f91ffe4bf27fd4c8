"""How commands end."""

import traceback
from collections.abc import Sequence

import pytest
import soundfile
from torch._utils import ExceptionWrapper

from espnet_distopt.errors import InputError, in_words, one_line_errors


def command(error: BaseException | None) -> None:
    @one_line_errors
    def main(cmd: Sequence[str] | None = None) -> None:
        """The command's help."""
        assert cmd == ["a"]
        if error is not None:
            raise error

    assert main.__doc__ == "The command's help."
    main(["a"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("wav.scp:3: no such file"), 2, "error: wav.scp:3: no such file\n"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C\n"),
    ],
)
def test_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(error)
    assert ended.value.code == code
    assert ended.value.__cause__ is None and ended.value.__suppress_context__
    assert capsys.readouterr() == ("", line)


def test_bugs_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="a bug") as caught:
        command(ValueError("a bug"))
    assert not isinstance(caught.value, InputError)


def test_success_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    command(None)
    assert capsys.readouterr() == ("", "")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise TypeError("an integer is required")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("disk full"), "OSError: disk full"),
        (KeyError("speech"), "KeyError: 'speech'"),
        (ValueError("\nfirst\nsecond\n"), "ValueError: first"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unprintable(), "Unprintable"),
        (Unprintable(3, "what is known"), "Unprintable: what is known"),
    ],
)
def test_any_error_in_words(error: BaseException, words: str) -> None:
    assert in_words(error) == words


def from_worker(error: Exception) -> Exception:
    """Return an error as the process gets it in whose worker it was raised."""
    try:
        raise error
    except Exception:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    try:
        wrapped.reraise()
    except Exception as found:
        return found
    raise AssertionError


def test_an_error_of_a_worker_says_what_the_worker_met() -> None:
    assert in_words(from_worker(KeyError("speech"))) == "KeyError: 'speech'"
    error = from_worker(soundfile.LibsndfileError(1, "Error opening 'a.wav': "))
    with pytest.raises(TypeError):
        str(error)
    said = "LibsndfileError: Error opening 'a.wav': Format not recognised."
    assert in_words(error) == in_words(error) == said
    assert "".join(traceback.format_exception(error)).count(f"soundfile.{said}") == 1
