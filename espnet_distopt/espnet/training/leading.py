"""What one learner does for all: the log, TensorBoard and ESPnet's common files.

ESPnet ties these duties to rank 0, and asks its `DistributedOption` for the rank each
time. Here they are those of the *leader*: of the living learners that were restarted
least often, the one of the lowest rank. So `Lead` changes what ESPnet sees there when
learners die. A learner that has joined in the place of the leader leaves the duties to
the one that has taken them over.
"""

import logging
from pathlib import Path
from typing import Any

from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter, aggregate

from espnet_distopt.core.membership import Members
from espnet_distopt.espnet.training.one_run import RunLock
from espnet_distopt.espnet.training.options import DistoptOptions


class Lead:
    """Says whether this learner is the one that acts for all, and makes it so.

    Args:
        rank: The number of this learner; 0 if there is only one.
        option: ESPnet's options of the distributed training, whose rank is changed.
        options: ESPnet's trainer options and the algorithm's.
        lock: The lock on the experiment's directory.
        joins: Whether this learner joins others that are training.

    Attributes:
        leader: The rank of the learner that acts for all.
        leads: Whether it is this one.
        writer: TensorBoard's writer of the training figures, if this learner has taken
            the lead over and so has none of ESPnet's.
    """

    def __init__(
        self,
        rank: int,
        option: DistributedOption,
        options: DistoptOptions,
        lock: RunLock,
        joins: bool = False,
    ) -> None:
        self.leader = 0
        self.leads = rank == 0 and not joins
        self.writer: Any = None
        self._rank = rank
        self._option = option
        self._options = options
        self._lock = lock
        self._joins = joins
        self._valid_writer: Any = None
        if joins:
            # ESPnet would make a DDP model, whose constructor waits for all learners.
            option.distributed = False
            self._stand_back()

    def begin_epoch(self) -> None:
        """Let ESPnet see that there are other learners, once it has no DDP model."""
        if self._joins:
            self._option.distributed = True

    def follow(self, leader: int, members: Members) -> None:
        """Take the lead over, or hand it over, if the members have changed so.

        Args:
            leader: The rank of the learner that acts for all.
            members: The living learners.
        """
        before, self.leader = self.leader, leader
        if self.leads == (leader == self._rank):
            return
        self.leads = not self.leads
        if self.leads:
            self._take_over(before, members)
        else:
            self.writer = self._valid_writer = None
            self._stand_back()
            self._lock.free()

    def _stand_back(self) -> None:
        """Let ESPnet see a rank that writes nothing, and log errors only."""
        self._option.dist_rank = max(1, self._rank)
        logging.getLogger().setLevel(logging.ERROR)

    def _take_over(self, before: int, members: Members) -> None:
        self._option.dist_rank = 0
        logging.getLogger().setLevel(self._options.log_level)
        why = "" if before in members.ranks else f"learner {before} has died; "
        logging.warning(
            f"{why}learner {self._rank} writes log and checkpoints from now on "
            f"({len(members.ranks)} go on)"
        )
        self._lock.take_over()
        if self._options.use_tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            folder = Path(self._options.output_dir) / "tensorboard"
            self.writer = SummaryWriter(str(folder / "train"))
            self._valid_writer = SummaryWriter(str(folder / "valid"))

    def write_epoch(self, train: SubReporter, valid: SubReporter) -> None:
        """Write an epoch's figures for TensorBoard, as ESPnet does where it leads.

        Args:
            train: ESPnet's reporter of the epoch's training.
            valid: ESPnet's reporter of its validation.
        """
        if self.writer is None:
            return
        count = train.get_total_count()
        self.writer.add_scalar("iter_epoch", train.get_epoch(), count)
        for writer, reporter in (self.writer, train), (self._valid_writer, valid):
            for key, values in reporter.stats.items():
                writer.add_scalar(key, aggregate(values), count)
            writer.flush()
