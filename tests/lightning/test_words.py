"""Messages of a session, as a user of Lightning meets them, speak of no session."""

import ast
from pathlib import Path

import pytest

from espnet_distopt.lightning.refusals import in_lightnings_words

PACKAGE = Path(__file__).resolve().parents[2] / "espnet_distopt"
SOURCES = [
    *PACKAGE.glob("session/*.py"),
    *PACKAGE.glob("core/*.py"),
    *PACKAGE.glob("algorithms/**/*.py"),
    *PACKAGE.glob("optimizers/*.py"),
    PACKAGE / "distributed" / "earlier.py",
]
OF_LOOPS = ("session", "WorkQueue", "no_sync", "begin_batch", "`with`", "_consensus()")

ONLY_IN_LOOPS = (
    "begin_batch needs the number",  # The strategy says 1, by which nothing is weighed.
    "or leave out begin_batch",
    "resume is called once",
    "save() is for within",
    "save() has no folder",
    "resume: X is a X: give",
    "a loop that stops on request calls finish() itself",
    "this training can stop within an epoch",  # Where the strategy lets nobody wait.
    "is for between epochs: call it after",
    "the session was left",  # The strategy drops it with the fit.
)
"""Parts of messages about calls that the strategy makes in the right order."""


def messages() -> list[str]:
    """Return the texts of all `InputError`s; what is filled in is an X."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "InputError":
                found.append("".join(map(_text, node.args)))
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "X"


MET = [
    text
    for text in messages()
    if any(word in text for word in OF_LOOPS)
    and not any(part in text for part in ONLY_IN_LOOPS)
]


def test_there_are_such_messages() -> None:
    assert len(MET) > 10
    assert all(any(part in text for text in messages()) for part in ONLY_IN_LOOPS)


@pytest.mark.parametrize("text", MET)
def test_a_message_has_the_words_of_lightning(text: str) -> None:
    told = in_lightnings_words(text)
    assert not [word for word in OF_LOOPS if word in told], told
