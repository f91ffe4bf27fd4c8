"""Meetings of learners through the rendezvous store."""

from collections.abc import Sequence

from espnet_distopt.distributed.watch import Watch


def barrier(watch: Watch, name: str, others: Sequence[int], what: str) -> None:
    """Wait until `others` meet too, however long they take, as long as all live.

    Comes before network operations that a learner may reach long before a slow one.

    Args:
        watch: of the calling thread.
        name: of this meeting; no other has it.
        others: all who meet, without this learner.
        what: is under way, for the message.

    Raises:
        PeerLostError: a learner has died; the message names it.
    """
    arrived, complete = f"meet/{name}", f"met/{name}"
    with watch.asking(what):
        if watch.store.add(arrived, 1) > len(others):
            watch.store.set(complete, b"1")
    watch.wait_for(complete, what)
