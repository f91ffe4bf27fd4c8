"""ESPnet's import, with the checks of types put off until they are needed.

ESPnet's ASR task takes several times as long to import as PyTorch. Most of that time
goes into `typeguard.typechecked`, which parses a whole module again for each function
that it is put on, and ESPnet has hundreds of them. Here a function is instrumented when
it is called for the first time, so that its checks are the same. If typeguard is not as
it is expected here, or DISTOPT_PLAIN is 1, ESPnet is imported as it is.
"""

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import FunctionType
from typing import Any

from espnet_distopt.core.plain import fall_back, is_plain


@contextmanager
def importing_espnet() -> Iterator[None]:
    """Make the imports of ESPnet in the `with` statement quick.

    What ESPnet prints meanwhile goes to stderr, since stdout is for results. There it
    also says, of the first learner, what takes these seconds: minutes if the network is
    asked for NLTK's data and does not answer.
    """
    if "espnet2.tasks" not in sys.modules and os.environ.get("RANK", "0") == "0":
        print("ESPnet is being imported", file=sys.stderr, flush=True)
    with redirect_stdout(sys.stderr), _checks_at_first_call():
        yield


@contextmanager
def _checks_at_first_call() -> Iterator[None]:
    module = _typeguard()
    if module is None:
        yield
        return
    stock: Any = module.typechecked

    @functools.wraps(stock)
    def typechecked(target: Any = None, /, **options: Any) -> Any:
        if options or not _is_put_off(target):
            return stock(target, **options) if target is not None else stock(**options)
        checked: Any = None

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal checked
            if checked is None:
                checked = stock(target)
            return checked(*args, **kwargs)

        return call

    module.typechecked = typechecked
    try:
        yield
    finally:
        module.typechecked = stock


def _typeguard() -> Any:
    """Return the module typeguard if its `typechecked` can be put off; None if not."""
    if is_plain():
        return None
    try:
        import typeguard

        first, *rest = inspect.signature(typeguard.typechecked).parameters.values()
    except Exception as error:
        fall_back("import of ESPnet", f"typeguard.typechecked: {error!r}")
        return None
    if first.default is not None or any(p.kind is not p.KEYWORD_ONLY for p in rest):
        fall_back("import of ESPnet", "typeguard.typechecked has another signature")
        return None
    return typeguard


def _is_put_off(target: Any) -> bool:
    """Return whether `target` is a plain function.

    A wrapper around a generator function or a coroutine function would be neither.
    """
    return isinstance(target, FunctionType) and not (
        inspect.isgeneratorfunction(target)
        or inspect.iscoroutinefunction(target)
        or inspect.isasyncgenfunction(target)
    )
