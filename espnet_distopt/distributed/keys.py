"""The keys of the rendezvous store: who writes each, who reads it, how long it lives.

The store belongs to `init_process_group`, and the launcher's store process is its
client, too. There are four kinds of keys:

    `distopt/...` are the launcher's, and live as long as the run.
    `distopt/start/...` are those of the start of an ESPnet training.
    `espnet_distopt/N/...` are those of session N of the learners' processes. Each
        session begins with none, and none is deleted at its end, unless it is said.
    `espnet_distopt/N/group/...` are those by which a process group connects.

The keys of the work queue, and those of the protocols by which learners agree on who
lives, who has met, and when gossip is over (`core.protocols`), are beside their code.

A `learner` is "RANK.INCARNATION", as 3.1 (`learner_name`): its rank, and how often a
learner of this rank was started before. In the launcher's keys that is counted over the
run; in a session's keys, only if the learner has replaced another one in this session.

A `multi_get` or a `get` waits for a key that does not exist. So whoever reads a key
that may not exist asks `check` first, or has written an empty value by `compare_set`.
"""

# The launcher's, in the store without any prefix

SURVIVES = "distopt/survives"
"""Learners go on without one that has died. Any learner writes it, when its algorithm
survives a death; the launchers read it, and replacements before they join."""

JOINED = "distopt/joined"
"""The replacements that have joined the others, or wait for one of them to do so, as
"3.1 5.2 ". Each appends itself; the launchers read it."""

HOPELESS = "distopt/hopeless"
"""Why nobody can join the others any more. The first learner that knows writes it; the
launchers read it, and end all learners."""


ENDED = "distopt/ended"
"""The processes that have ended, well or not, as "3.1 5.2 ". Each launcher appends its
own as soon as it knows; every heartbeat reads it. The first learner makes it."""


def end(learner: str) -> str:
    """Return the key that says why a process has ended by an error.

    It writes that before it ends, behind `launch_variables.LOST` if the others go on
    without it, else `FAILED`; its launcher reads it.
    """
    return f"distopt/end/{learner}"


def launch(name: str) -> str:
    """Return a key by which the launchers of several nodes talk.

    Node 0 writes "counts" first, the learners of each node, with which all others must
    agree. Any node writes "failed", the first death that ends the run. Node 0 writes
    "verdict" last. Each node n writes "joined/n" (how often it has come), "look/n" (a
    count, twice a second), "ended/n" (how its learners have ended), and "read/n" when
    it has read the verdict; node 0 reads these.
    """
    return f"distopt/launch/{name}"


# The start of a training

START = "distopt/start"
"""The prefix of the three keys below."""

DECIDED = "decided"
"""Whether the training may start. Learner 0 writes it; all read it, later ones too."""

REFUSED = "refused"
"""Why a learner's machine cannot train. The first such one writes it; learner 0 reads
it, as soon as it is there."""


def found(rank: int) -> str:
    """Return the key of what a learner has found on its machine; learner 0 reads it."""
    return str(rank)


def decision_read(rank: int) -> str:
    """Return the key of one that has read the decision, for which learner 0 stays."""
    return f"read/{rank}"


# A session's


def session(number: int) -> str:
    """Return the prefix of the keys of a session; all processes number them alike."""
    return f"espnet_distopt/{number}"


# Who lives

FAILED = "failed"
"""Why the run has ended for all, or empty. The first learner that fails writes it;
every heartbeat reads it."""

TOKEN = "token"
"""Random bytes that tell learners of this session from strangers. The first learner
that needs it makes it; who connects to a learner sends it."""


def beat(learner: str) -> str:
    """Return the key where a learner counts its heartbeats, up to `heartbeats.LEFT`."""
    return f"beat/{learner}"


def process(learner: str) -> str:
    """Return the key of which process a learner is, and on which machine.

    The learner writes it once, before its first heartbeat: "INCARNATION MACHINE", the
    first of which the launcher has counted. Others read it when the launcher says that
    a process of this rank has ended, and when they make the first group of gloo.
    """
    return f"process/{learner}"


# Collectives of the living


def done(attempt: str) -> str:
    """Return the counter of the learners that have the result of a collective.

    The last one decides. The first learner deletes it with the next one's verdict.
    """
    return f"done/{attempt}"


def decided(attempt: str) -> str:
    """Return the key of the verdict on a collective, for which all wait.

    The first one counts, by compare-and-set. It lives as long as `done`.
    """
    return f"decided/{attempt}"


def completed(attempt: str, rank: int) -> str:
    """Return the key of how many parts of an aborted collective a learner has.

    It writes that before all meet to repeat the collective; all read it then.
    """
    return f"completed/{attempt}/{rank}"


def group(backend: str, name: str) -> str:
    """Return the prefix of the keys by which a process group connects.

    Below it are torch's own keys, and those of `ports`.
    """
    return f"group/{backend}/{name}"


def ports(rank: int) -> str:
    """Return the key of the ports of a learner's connections, in a group's prefix.

    It writes them when the group is connected; all others of the group read them, to
    know which of their own connections lead to a learner.
    """
    return f"ports/{rank}"


# Gossip


def address(learner: str) -> str:
    """Return the key of the address at which a learner takes invitations.

    It writes it once; those that invite it read it.
    """
    return f"address/{learner}"


def verdict(active: str, number: int) -> str:
    """Return the key of the verdict on an exchange whose connection has broken.

    The passive learner writes it; the active one, which has given the exchange its
    number, waits for it.
    """
    return f"verdict/{active}/{number}"


def host(learner: str) -> str:
    """Return the key of the address at which a learner serves its state.

    It writes it once; replacements of others read it.
    """
    return f"host/{learner}"


# Stopping and saving

STOP = "stop"
"""It is there once a learner has announced a stop. All look for it after each step."""


def stop_at(first: int) -> str:
    """Return the key of the step at which a group stops, of which this rank is first.

    The first proposal counts, by compare-and-set; all learners of the group read it.
    """
    return f"stop/{first}"


def pause(barrier: int) -> str:
    """Return the key that says before a barrier that all pause there."""
    return f"pause/{barrier}"
