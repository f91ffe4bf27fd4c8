"""How commands end."""

from collections.abc import Sequence

import pytest

from espnet_distopt.errors import InputError, one_line_errors


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
