"""What one learner saves of a run, and what it goes on from in the next run.

A learner saves its state when it stops within an epoch, and before each epoch's
validation. The files are written while ESPnet validates. ESPnet writes its checkpoint
after that, so a checkpoint never lacks the learners' files.
"""

import logging
from pathlib import Path

from espnet_distopt.espnet.training import learner_files
from espnet_distopt.espnet.training.learner_files import LearnerFiles, load_learner
from espnet_distopt.espnet.training.learner_state import State
from espnet_distopt.session import Session


class SavedStates:
    """The saved states of one learner.

    Args:
        output_dir: The experiment's directory.
        rank: The number of this learner.

    Attributes:
        saves: The number of times that this learner has saved its state; it is the same
            for all learners.
    """

    def __init__(self, output_dir: Path, rank: int) -> None:
        self.saves = 0
        self._output_dir, self._rank = output_dir, rank
        self._files = LearnerFiles(output_dir, rank)

    def begin(self, state: State, session: Session) -> None:
        """Begin to save a state, which the learner has in its `epoch`.

        Raises:
            PeerLostError: A learner is lost, and the algorithm does not survive that.
        """
        self.saves += 1
        driver, number = session.driver, self.saves

        def claim(name: str) -> bool:
            key = f"checkpoint/{number}/{name}"
            with driver.asking("saving the learners' states"):
                first = driver.store.compare_set(key, "", str(driver.rank))
            return int(first) == driver.rank

        self._files.begin({**state, "saves": number}, state["epoch"], claim)

    def finish(self) -> None:
        """Wait until this learner has written what it had to.

        Raises:
            OSError: A file cannot be written, for example because the disk is full.
        """
        self._files.finish()

    def complete(self) -> None:
        """Write what others should have written, once all have come to `finish`."""
        self._files.complete()

    def forget_other_runs(self, epoch: int, resume: bool) -> None:
        """Remove the states of an earlier training that this one does not go on from.

        All learners call this before any of them saves.

        Args:
            epoch: The epoch that ESPnet begins with. Later ones were never reached.
            resume: ESPnet's option of that name. Without it, the training begins anew.
        """
        learner_files.forget_later(self._output_dir, epoch if resume else 0)

    def _agree(self, session: Session) -> None:
        """Give all learners one number of saves, which none has had before.

        A learner that has gone on from no state of its own has counted fewer than the
        others.
        """
        mean = session.mean(float(self.saves))
        if session.mean(float(self.saves == mean)) < 1.0:
            self.saves = round(mean * session.learner.size)

    def within(self, session: Session, epoch: int, batches: int | None) -> State | None:
        """Return this learner's saved state within `epoch` if all learners have one.

        All learners call this together. A kill during a save can leave states of
        different stops, or of some learners only; those are of no use together. States
        of another number of learners or batches, or of other nodes, are of no use
        either, because a learner's batches were others then.

        Args:
            session: This learner's session.
            epoch: The number of the epoch.
            batches: The number of its batches; None if it is not known.
        """
        state = load_learner(self._output_dir, self._rank, epoch)
        if session.mean(float(state is not None)) == 0.0:
            return None
        fits = state is not None and _fits(state, session, batches)
        saves = float(state["saves"]) if state is not None else -1.0
        same = saves == session.mean(saves)
        if session.mean(float(fits and same)) == 1.0:
            self.saves = int(saves)
            return state
        logging.error(
            f"learner {self._rank}: there is no common state of all "
            f"{session.learner.size} learners within epoch {epoch} with these batches: "
            "the epoch is repeated"
        )
        learner_files.forget_learner(self._output_dir, self._rank, epoch)
        return None

    def after(self, session: Session, epoch: int) -> State | None:
        """Return the saved state after `epoch` with which this learner goes on.

        All learners call this together.

        It is the learner's own, if there is one. A learner that had died takes that of
        another with a block method, where all are alike between epochs. With gossip
        between nodes, all learners of a node take the first one's state, because they
        must go on alike.
        """
        equal = _equal(session) if session.algorithm.wants_gossip else [self._rank]
        state = load_learner(self._output_dir, equal[0], epoch)
        if state is not None and state["batches"] is not None:
            state = None  # It died within the epoch, after it had been saved there.
        if state is not None and not {*equal} <= {*state["equal"]}:
            state = None  # The node has learners that were of others before.
        if state is None:
            state = self._of_another(session, epoch)
        if state is None:
            whose = "of its own" if len(equal) == 1 else "in common with its node"
            logging.error(
                f"learner {self._rank} has no state {whose} after epoch {epoch}; it "
                "goes on from the consensus model with the checkpoint's optimizer"
            )
        self.saves = 0 if state is None else state["saves"]
        self._agree(session)
        return state

    def _of_another(self, session: Session, epoch: int) -> State | None:
        """Return the state of the lowest learner that has one, for block methods."""
        if session.algorithm.wants_gossip or not session.algorithm.survives:
            return None
        for rank in range(session.learner.size):
            state = load_learner(self._output_dir, rank, epoch)
            if state is not None and state["batches"] is None:
                logging.error(
                    f"learner {self._rank} has no state of its own after epoch "
                    f"{epoch}; it goes on from that of learner {rank}"
                )
                return state
        return None


def _equal(session: Session) -> list[int]:
    """Return the ranks whose replicas equal this learner's after each step."""
    return list(session.algorithm.equal_replicas(session.learner))


def _fits(state: State, session: Session, batches: int | None) -> bool:
    """Return whether a state within an epoch is of the same division of its batches."""
    now = _equal(session)
    same = state["learners"] == session.learner.size and state["equal"] == now
    trained = state["batches"] is None  # Only the validation is left.
    return same and (trained or state["of"] == batches)
