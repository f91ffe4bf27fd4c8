"""Notice what a user changes in the model and the optimizer while a session is open.

The session looks once a step, which takes a few microseconds. It notices parameters
that were frozen, unfrozen or added, a state that was loaded into the model, and updates
that no optimizer has made.
"""

import logging
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from espnet_distopt.core.learner import Learner
from espnet_distopt.errors import InputError

SAMPLE = 1024
"""The most elements that are compared, to notice updates that leave no other trace."""

_IN_SESSIONS: MutableMapping[Tensor, int] = WeakIdKeyDictionary()
"""Parameter -> the number of open sessions that train it."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def in_session(parameter: Tensor) -> bool:
    """Return whether an open session trains a parameter."""
    return _IN_SESSIONS.get(parameter, 0) > 0


class LoadHook:
    """A hook that calls `note` when a state was loaded into a module.

    Args:
        note: the function to call; None, in a copy of the module, means no function.
    """

    def __init__(self, note: Callable[[], None] | None) -> None:
        self._note = note

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        """Call `note`; `nn.Module.load_state_dict` calls this."""
        if self._note is not None:
            self._note()

    def __reduce__(self) -> tuple[type["LoadHook"], tuple[None]]:
        """Copy and pickle with the module; the copy of the hook calls nothing."""
        return LoadHook, (None,)


class Changes:
    """Notices what the user has changed since the session's last step.

    A state may be loaded at any time into a module in which nothing is trained, such as
    a target network or a teacher.

    Attributes:
        loaded: whether a state was loaded into the model that the algorithm does not
            know of.
    """

    def __init__(self, learner: Learner, model: nn.Module) -> None:
        self.loaded = False
        self._learner = learner
        self._model = model
        self._trained = {id(p) for p in learner.parameters}
        self._ids = [id(p) for p in learner.parameters]
        self._count_session(1)
        self._others = {
            name: p
            for name, p in model.named_parameters()
            if p.requires_grad and id(p) not in self._trained
        }
        self._warned = False
        self._stride = max(1, -(-learner.params.numel() // SAMPLE))
        self._handles = [
            module.register_load_state_dict_post_hook(LoadHook(self._note_load))  # type: ignore[no-untyped-call]
            for module in model.modules()
            if any(id(p) in self._trained for p in module.parameters())
        ]
        self.remember()

    def close(self) -> None:
        """Remove all hooks."""
        self._count_session(-1)
        for handle in self._handles:
            handle.remove()

    def _count_session(self, number: int) -> None:
        for parameter in self._learner.parameters:
            _IN_SESSIONS[parameter] = _IN_SESSIONS.get(parameter, 0) + number

    def _note_load(self) -> None:
        self.loaded = True

    # Loading

    def check_not_loaded(self) -> None:
        """Raise InputError if a state was loaded into the model."""
        if self.loaded:
            raise InputError(
                f"{self._learner.where}: model.load_state_dict was called while the "
                "session is open, and the algorithm still goes by the parameters that "
                "were there before: between epochs, call session.restart_from_model() "
                "on all learners after it"
            )

    def check_same_parameters(self) -> None:
        """Raise InputError if the model no longer has the parameters that are trained.

        `load_state_dict(assign=True)` puts other parameters in their place.
        """
        here = {name: id(p) for name, p in self._model.named_parameters()}
        for name, parameter in zip(
            self._learner.names, self._learner.parameters, strict=True
        ):
            if name in here and here[name] != id(parameter):
                raise InputError(
                    f"{self._learner.where}: parameter '{name}' of the model is not "
                    "the one that the optimizer trains (load_state_dict with "
                    "assign=True?): leave the session and begin a new one, with a new "
                    "optimizer"
                )

    # Freezing

    def check_trained(self, may_freeze: bool) -> None:
        """Raise InputError if other parameters are trained than at the beginning."""
        groups = self._learner.optimizer.param_groups
        found = [id(p) for g in groups for p in g["params"] if p.requires_grad]
        if found == self._ids:
            return
        if new := set(found) - self._trained:
            self._refuse(min(found.index(i) for i in new), found)
        if not may_freeze and (missing := self._trained - set(found)):
            name = self._learner.names[min(self._ids.index(i) for i in missing)]
            raise InputError(
                f"{self._learner.where}: parameter '{name}' was frozen, or taken out "
                "of the optimizer, while the session is open: leave the session and "
                "begin a new one"
            )

    def check_others(self) -> None:
        """Raise InputError if an optimizer trains what no session does.

        A second optimizer over other parameters of the model, as Muon's beside AdamW's,
        needs a session of its own. What has no gradient is no optimizer's: an average
        of the parameters, say, may change.
        """
        for name, p in self._others.items():
            changed = p._version != self._other_versions[name] and p.grad is not None
            if changed and p.requires_grad and not in_session(p):
                raise InputError(
                    f"{self._learner.where}: parameter '{name}' is updated, but not by "
                    "the optimizer of this session, and no learner would learn of its "
                    "updates: give its optimizer a session of its own"
                )

    def _refuse(self, place: int, found: list[int]) -> None:
        names = {id(p): name for name, p in self._model.named_parameters()}
        name = names.get(found[place], f"number {place} of the optimizer")
        raise InputError(
            f"{self._learner.where}: parameter '{name}' was unfrozen, or added to the "
            "optimizer, while the session is open, and no learner would learn of its "
            "updates: leave the session and begin a new one"
        )

    def forget_load(self) -> None:
        """Forget that a state was loaded, because the algorithm knows of it now."""
        self.loaded = False
        self.remember()

    # Updates

    def count_update(self) -> None:
        """Count an update if one was made without the optimizer's `step`.

        A step that the optimizer has skipped itself is not an update.
        """
        learner = self._learner
        if not learner.take_stepped() and self.updated():
            learner.updates += 1
            self._warn_of_moments()

    def _warn_of_moments(self) -> None:
        """Warn once that the optimizer's moments know nothing of an update."""
        groups = self._learner.optimizer.param_groups
        if self._warned or not any(g.get("betas") or g.get("momentum") for g in groups):
            return
        self._warned = True
        logging.getLogger(__name__).warning(
            f"{self._learner.where}: the parameters were updated, but not by a step of "
            f"the {type(self._learner.optimizer).__name__} that is trained with: its "
            "moments, and what the algorithm does with them, do not follow such "
            "updates. If the optimizer was made anew, begin a new session, or fit, "
            "with it"
        )

    def remember(self) -> None:
        """Remember the present parameters: a later difference is an update."""
        self._versions = [p._version for p in self._learner.parameters]
        self._other_versions = {n: p._version for n, p in self._others.items()}
        self._sample = self._sampled_bits()

    def updated(self) -> bool:
        """Return whether parameters have changed since `remember`.

        An update in place raises the parameters' versions. What the algorithm writes to
        the flat buffer does not. What a user writes to a parameter's `.data` does not
        either, so a sample of the elements is compared as well.
        """
        if self._versions != [p._version for p in self._learner.parameters]:
            return True
        return not torch.equal(self._sampled_bits(), self._sample)

    def _sampled_bits(self) -> Tensor:
        """Return a sample of the parameters as bits, so that a NaN equals itself."""
        flat = self._learner.params.detach()
        return flat[:: self._stride].clone().view(_BITS[flat.element_size()])
