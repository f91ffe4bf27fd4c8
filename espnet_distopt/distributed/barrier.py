"""A barrier of learners through the rendezvous store.

Learners may reach a barrier at very different times. A wait in the store takes as long
as it takes, whereas a collective that waits for its `groups.TIMEOUT` destroys its
group.
"""

from collections.abc import Sequence

from espnet_distopt.distributed.watch import Watch


def barrier(watch: Watch, name: str, others: Sequence[int], what: str) -> None:
    """Wait until `others` have come to this barrier too, unless a learner is lost.

    A barrier comes before a network operation that a learner may reach long before a
    slow one.

    Args:
        watch: the calling thread's connection to the store.
        name: the name of this barrier, which no other barrier has.
        others: the ranks of all learners that meet, without this one.
        what: what is under way, in words, for the message.

    Raises:
        PeerLostError: a learner has died; the message names it.
    """
    arrived, complete = f"meet/{name}", f"met/{name}"
    with watch.asking(what):
        if watch.store.add(arrived, 1) > len(others):
            watch.store.set(complete, b"1")
    watch.wait_for(complete, what)
