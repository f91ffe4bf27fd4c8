"""ESPnet is imported quickly, and nobody who looks finds anything but real modules."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typeguard

from espnet_distopt.core.plain import PLAIN
from espnet_distopt.espnet.models.quick_import import importing_espnet

PROGRAM = """
import espnet_distopt.bin.asr_train
import typeguard
from espnet2.asr.encoder.rnn_encoder import RNNEncoder

try:
    RNNEncoder(40, hidden_size="320")
except typeguard.TypeCheckError as error:
    print(error)
print(isinstance(RNNEncoder(4, hidden_size=2, output_size=2), RNNEncoder))
"""

LOOKS = '''
"""As the package of this name, looks at what is installed and at what is imported."""
import inspect, pkgutil, sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec

for name in packages_distributions():
    # humanfriendly puts an object without __spec__ in its own place.
    if name.isidentifier() and name in sys.modules and name != "humanfriendly":
        assert find_spec(name) is not None, name
for name, module in [*sys.modules.items()]:
    if name.split(".")[0] in ("scipy", "librosa", "g2p_en", "nltk", "typeguard"):
        assert find_spec(name) is module.__spec__ is not None, name
        assert module.__loader__ is not None, name
        for each in pkgutil.iter_modules(getattr(module, "__path__", ())):
            pass
    hasattr(module, "__file__")
inspect.getmodule(inspect.currentframe())

import g2p_en.expand
import librosa.beat
import scipy.signal.windows, scipy.stats.distributions, scipy.ndimage.filters
try:
    from scipy.signal import kaiser
except ImportError:
    pass
else:
    raise AssertionError("this scipy has no such name")
print("looked", file=sys.stderr)

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''


def run(*path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    found = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(found)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_beside_a_package_that_looks_at_all_others(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(LOOKS)
    ran = run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "looked" in ran.stderr
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
