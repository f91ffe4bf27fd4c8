"""What one learner does for all: the log, TensorBoard and ESPnet's common files.

ESPnet ties these duties to rank 0, and asks its `DistributedOption` for the rank each
time. Here they are those of the lowest living rank, so `Lead` changes what ESPnet sees
there when learners die.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet2.train.distributed_utils import DistributedOption
from espnet2.train.reporter import SubReporter, aggregate

from espnet_distopt.core.membership import Members
from espnet_distopt.espnet.training.options import DistoptOptions


class Lead:
    """Says whether this learner is the one that acts for all, and makes it so.

    Args:
        rank: The number of this learner; 0 if there is only one.
        option: ESPnet's options of the distributed training, whose rank is changed.
        options: ESPnet's trainer options and the algorithm's.
        take_lock: It takes over the lock on the experiment's directory.

    Attributes:
        leads: Whether this learner acts for all.
        writer: TensorBoard's writer of the training figures, if this learner has taken
            the lead over and so has none of ESPnet's.
    """

    def __init__(
        self,
        rank: int,
        option: DistributedOption,
        options: DistoptOptions,
        take_lock: Callable[[], None],
    ) -> None:
        self.leads = rank == 0
        self.writer: Any = None
        self._rank = rank
        self._option = option
        self._options = options
        self._take_lock = take_lock
        self._valid_writer: Any = None

    def follow(self, members: Members) -> None:
        """Take the lead over, or hand it over, if the members have changed so."""
        leads = members.ranks[:1] == (self._rank,)
        if leads == self.leads:
            return
        self.leads = leads
        self._option.dist_rank = 0 if leads else max(1, self._rank)
        if leads:
            self._take_over(members)
        else:
            self.writer = self._valid_writer = None
            logging.getLogger().setLevel(logging.ERROR)

    def _take_over(self, members: Members) -> None:
        logging.getLogger().setLevel(self._options.log_level)
        lost = ", ".join(map(str, range(self._rank)))
        logging.warning(
            f"learner {lost} has died; learner {self._rank} writes log and checkpoints "
            f"from now on ({len(members.ranks)} go on)"
        )
        self._take_lock()
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
