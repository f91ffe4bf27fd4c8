"""Which signals ask for a stop, and what they do."""

import os
import signal
from collections.abc import Generator

import pytest

from espnet_distopt.distributed.stop_signals import SIGNALS, Stopped, on_stop_signal


@pytest.fixture(autouse=True)
def handlers() -> Generator[None]:
    """Give Python's own handlers to a test, and the former ones back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_for_a_stop(number: signal.Signals) -> None:
    asked: list[str] = []
    before = signal.getsignal(number)
    with on_stop_signal(asked.append):
        os.kill(os.getpid(), number)
    assert asked == [number.name]
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    asked: list[str] = []
    with pytest.raises(KeyboardInterrupt), on_stop_signal(asked.append):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the second one did nothing")
    assert asked == ["SIGINT"]


def test_ctrl_c_stays_ignored_in_the_background() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked: list[str] = []
    with on_stop_signal(asked.append):
        os.kill(os.getpid(), signal.SIGINT)
    assert not asked


def test_signals_are_ignored_once_it_has_stopped() -> None:
    with pytest.raises(Stopped), on_stop_signal(lambda name: None):
        raise Stopped
    for number in SIGNALS:
        os.kill(os.getpid(), number)
