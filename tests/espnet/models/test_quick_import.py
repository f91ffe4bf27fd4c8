"""ESPnet is imported quickly, and checks the types of its arguments as before."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typeguard

from espnet_distopt.core.plain import PLAIN
from espnet_distopt.espnet.models.quick_import import importing_espnet

PROGRAM = """
from espnet_distopt.espnet.models.quick_import import importing_espnet
with importing_espnet():
    import espnet_distopt.espnet.training.tasks
import typeguard
from espnet2.asr.encoder.rnn_encoder import RNNEncoder

try:
    RNNEncoder(40, hidden_size="320")
except typeguard.TypeCheckError as error:
    print(error)
print(isinstance(RNNEncoder(4, hidden_size=2, output_size=2), RNNEncoder))
"""


def test_what_a_training_imports_checks_its_types_when_it_is_called() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    wrong, made = ran.stdout.splitlines()
    assert '"hidden_size" (str) is not an instance of int' in wrong
    assert made == "True"


def put_off(function: Callable[..., Any]) -> Any:
    """Decorate a function as ESPnet does while it is imported."""
    with importing_espnet():
        return typeguard.typechecked(function)


def double(number: int) -> int:
    return 2 * number


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def test_a_function_is_instrumented_at_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock, instrumented = typeguard.typechecked, []

    def typechecked(target: Any = None, *, policy: Any = None) -> Any:
        instrumented.append(target)
        return stock(target)

    monkeypatch.setattr(typeguard, "typechecked", typechecked)
    checked = put_off(double)
    assert instrumented == []
    assert [checked(2), checked(number=3)] == [4, 6]
    assert instrumented == [double]
    with pytest.raises(typeguard.TypeCheckError, match='"number"'):
        checked("2")
    assert typeguard.typechecked is typechecked


def test_a_generator_function_stays_one() -> None:
    assert put_off(numbers).__code__.co_flags & 0x20
    assert list(put_off(numbers)(2)) == [0, 1]


def positional(target: Any = None, policy: Any = None) -> Any:
    return target


@pytest.mark.parametrize("other", [None, positional, lambda target: target])
def test_another_typeguard_is_left_as_it_is(
    other: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if other is None:
        monkeypatch.delattr(typeguard, "typechecked")
    else:
        monkeypatch.setattr(typeguard, "typechecked", other)
    with caplog.at_level(logging.WARNING), importing_espnet():
        assert getattr(typeguard, "typechecked", None) is other
    (record,) = caplog.records
    assert "import of ESPnet: done the plain way" in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(("value", "plain"), [("1", True), ("0", False), ("", False)])
def test_one_variable_leaves_typeguard_as_it_is(
    value: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLAIN, value)
    stock = typeguard.typechecked
    with importing_espnet():
        assert (typeguard.typechecked is stock) is plain
