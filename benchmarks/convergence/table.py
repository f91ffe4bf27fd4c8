"""All claims: what each says, who says it, and which trainings decide it.

A claim is a function of its comparisons, whose docstring is the claim:

    @claim(source="...", seeds=10)
    def blocks() -> Iterator[Comparison]:
        \"""Local SGD is not more than 2 % worse than all-reduce.\"""
        one = of(ADAM, learners=16, steps=1000)
        yield ask("local_sgd", use(one, "local_sgd", period=8), "allreduce", one, 2)

`ask(..., 2)` asks whether a method is at most 2 % worse than its reference, and
`ask(..., 5, "at least")` whether it is at least 5 % worse. `Arm(training, rates)` is a
training at its best rate. What the trainings of a claim share, the page says by itself.
A claim may begin with a search for the case that it is about, see `ladder`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from convergence.claim import Arm, Claim, Comparison
from convergence.ladder import Ladder
from convergence.paired import Question
from convergence.training import NO_CLIP, Training
from espnet_distopt.algorithms.block.compression import CHUNK, bytes_of_chunk

CLAIMS: dict[str, Claim] = {}
"""Name -> claim."""

# How claims are written


def of(base: Training, *, steps: int = 0, **fields: Any) -> Training:
    """Return a training with other fields; with `steps`, of so many of each learner."""
    found = replace(base, **fields)
    if steps:
        found = replace(found, samples=steps * found.learners * found.batch)
    return found


def use(base: Training, algorithm: str, **options: Any) -> Training:
    """Return a training by another algorithm with its options."""
    return replace(base, algorithm=algorithm, options=tuple(options.items()))


def ask(
    name: str,
    method: Training | Arm,
    against: str,
    reference: Training | Arm,
    limit: float,
    sense: Literal["at most", "at least"] = "at most",
    counts: bool = True,
) -> Comparison:
    """Return the comparison of a method with a reference; see `Comparison`."""
    arms = [a if isinstance(a, Arm) else Arm(a) for a in (method, reference)]
    return Comparison(
        name=name,
        arm=arms[0],
        against=against,
        reference=arms[1],
        question=Question(limit, sense),
        counts=counts,
    )


def add(
    name: str,
    text: str,
    comparisons: Sequence[Comparison],
    source: str,
    seeds: int | range = 5,
    **more: Any,
) -> None:
    """Add a claim; see `Claim`."""
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    CLAIMS[name] = Claim(
        text=text,
        source=source,
        comparisons=tuple(comparisons),
        seeds=tuple(numbers),
        **more,
    )


def claim(**about: Any) -> Callable[[Callable[[], Iterator[Comparison]]], None]:
    """Add the claim of a function: its name, its docstring and its comparisons."""

    def added(asked: Callable[[], Iterator[Comparison]]) -> None:
        text = " ".join((asked.__doc__ or "").split())
        add(asked.__name__, text, list(asked()), **about)

    return added


SGD = Training(
    algorithm="allreduce", learners=1, batch=4, samples=0, lr=0.0, seed=0,
    problem="digits",
)  # fmt: skip
ADAM = replace(SGD, optim="adam", lr=0.001)
RATES = (0.00125, 0.0025, 0.005)
ADAM_RATES = (0.00025, 0.0005, 0.001)
LAMB_RATES = (0.0005, 0.001, 0.002)
BLSTM_RATES = (0.001, 0.002, 0.004), (0.002, 0.004, 0.008)

BMUF = "Chen, Ding and Huo, ICASSP 2020"
MALEKI = "Maleki et al., MLSys 2021"
COMPRESSION = "this project, `espnet_distopt/algorithms/block/compression.py`"
CONSISTENT = "this project, `espnet_distopt/optimizers/consistent.py`"

# Adam's second moment


def second_moments(
    moment: str, limit: float, sense: Literal["at most", "at least"]
) -> Iterator[Comparison]:
    """Yield the comparisons of all methods that average models with all-reduce."""
    for learners, steps, per_node in ((4, 1000, 2), (16, 500, 4), (64, 500, 4)):
        whole = of(ADAM, learners=learners, steps=steps)
        methods: dict[str, tuple[str, dict[str, Any]]] = {
            "adpsgd, ring": ("adpsgd", {"topology": "ring"}),
            "adpsgd, random": ("adpsgd", {"topology": "random"}),
            "dpsgd, ring": ("dpsgd", {"topology": "ring"} if learners > 16 else {}),
            "local_sgd, period 8": ("local_sgd", {"period": 8}),
            f"hadpsgd, nodes of {per_node}": ("hadpsgd", {"per_node": per_node}),
        }
        if learners == 4:
            del methods["adpsgd, random"]  # The same pairs as on the ring.
        if learners > 16:
            random = "dpsgd", {"topology": "randomized_ring"}
            methods["dpsgd, randomized ring"] = random
        for name, (algorithm, options) in methods.items():
            method = use(whole, algorithm, **options, second_moment=moment)
            yield ask(name, method, "allreduce", whole, limit, sense)


@claim(source=CONSISTENT, seeds=10)
def adam_local_moment() -> Iterator[Comparison]:
    """With `second_moment: local`, AD-PSGD, H-ADPSGD, D-PSGD and Local SGD with Adam
    are at least 2 % worse than all-reduce with the same settings.
    """
    yield from second_moments("local", 2, "at least")


@claim(source=CONSISTENT, seeds=16)
def no_loss_adam() -> Iterator[Comparison]:
    """With `second_moment: consistent`, AD-PSGD, H-ADPSGD, D-PSGD and Local SGD with
    Adam are not more than 2 % worse than all-reduce with the same settings.
    """
    yield from second_moments("consistent", 2, "at most")


@claim(
    source="this project, `docs/algorithms/optimizers.md`",
    note="All-reduce's gradients have a norm of about 1.2, and a learner's of about "
    "4.5.",
)
def adam_clipping() -> Iterator[Comparison]:
    """With 16 learners that clip their own gradients to a norm of 1.5, AD-PSGD and
    Local SGD with Adam and `second_moment: consistent` are not more than 2 % worse than
    all-reduce, which clips the mean gradient.
    """
    whole = of(ADAM, learners=16, steps=500, clip=1.5)
    for norm in (1.5, 6.0):
        own = replace(whole, clip=norm)
        moment = {"second_moment": "consistent"}
        for name, method in (
            ("adpsgd", use(own, "adpsgd", **moment)),
            ("local_sgd, period 8", use(own, "local_sgd", period=8, **moment)),
        ):
            yield ask(
                f"{name}, norm {norm:g}", method, "allreduce, norm 1.5", whole, 2,
                counts=norm == 1.5,
            )  # fmt: skip


# Adasum, at the rate of one learner

ALONE = replace(SGD, samples=32_768)


@claim(
    source=f"{MALEKI}, the study with LeNet-5",
    note="The sum is all-reduce with N times the rate. That Adasum adds orthogonal "
    "updates and averages parallel ones is arithmetic, which "
    "`tests/algorithms/test_adasum_arithmetic.py` checks.",
)
def adasum_rate() -> Iterator[Comparison]:
    """Adasum with 4 to 64 learners at the best rate of one learner, and with 16 at 4
    times that rate, is not more than 10 % worse than one learner; the sum is at least
    10 % worse than Adasum from 16 learners on.
    """
    for learners, times in ((4, 1), (16, 1), (64, 1), (16, 4)):
        whole = of(ALONE, learners=learners)
        at = f", {times} times the rate" if times > 1 else ""
        adasum = Arm(use(whole, "adasum"), RATES, ALONE, times)
        one = Arm(ALONE, RATES)
        yield ask(f"adasum{at}", adasum, "one learner, best rate", one, 10)
        total = Arm(whole, RATES, ALONE, times * learners)
        yield ask(
            f"sum{at}", total, f"adasum{at}", adasum, 10, "at least", learners >= 16
        )


@claim(source=MALEKI, seeds=10)
def adasum_rate_adam() -> Iterator[Comparison]:
    """With Adam and LAMB, Adasum with 16 learners at the best rate of one learner is
    not more than 10 % worse than one learner.
    """
    for optim, rates in (("adam", ADAM_RATES), ("lamb", LAMB_RATES)):
        alone = replace(ALONE, optim=optim)
        whole, one = of(alone, learners=16), Arm(alone, rates)
        adasum = Arm(use(whole, "adasum"), rates, alone)
        yield ask(f"adasum, {optim}", adasum, "one learner", one, 10)
        mean = Arm(whole, rates, alone, 16)
        name = f"allreduce with 16 times the rate, {optim}"
        yield ask(name, mean, "one learner", one, 10, counts=False)


@claim(source=MALEKI)
def adasum_period() -> Iterator[Comparison]:
    """Adasum with 16 learners that combine their updates every 8 or 64 steps, at the
    best rate of one learner, is not more than 10 % worse than one learner.
    """
    for optim, rates in (("sgd", RATES), ("adam", ADAM_RATES)):
        alone = replace(ALONE, optim=optim)
        whole, one = of(alone, learners=16), Arm(alone, rates)
        for period in (8, 64):
            adasum = Arm(use(whole, "adasum", period=period), rates, alone)
            name = f"adasum, period {period}, {optim}"
            yield ask(name, adasum, "one learner", one, 10)


@claim(source="Maleki et al., arXiv 2006.02924, abstract (30 % fewer steps)")
def adasum_lamb_steps() -> Iterator[Comparison]:
    """LAMB with Adasum is as good after 210 steps as LAMB with the mean after 300, each
    at its best rate.
    """
    digits, labels = (0.005, 0.01, 0.02), (0.01, 0.02, 0.04)
    for problem, batch, rates in (
        ("digits", 16, digits),
        ("digits", 64, digits),
        ("labels", 16, labels),
    ):
        mean = of(
            SGD, learners=16, steps=300, optim="lamb", problem=problem, batch=batch
        )
        adasum = of(use(mean, "adasum"), steps=210)
        yield ask(
            f"adasum, {problem}, 16 x {batch}", Arm(adasum, rates),
            "allreduce, 300 steps", Arm(mean, rates), 0,
        )  # fmt: skip


# BMUF-Adam


def bmuf_adam(cell: Training, **options: Any) -> Training:
    """Return BMUF-Adam as in its paper; momentum sets in after a fifth of the steps."""
    known = {"period": 8, "warmup": cell.steps // 5, "second_moment": "local"}
    return use(cell, "bmuf_adam", **known, **options)


def moments(*learners_and_blocks: tuple[int, int]) -> Iterator[Comparison]:
    """Yield comparisons of extrapolated moments with averaged ones."""
    for learners, blocks in learners_and_blocks:
        cell = of(ADAM, learners=learners, steps=8 * blocks)
        yield ask(
            "bmuf_adam, extrapolated", bmuf_adam(cell, moments="extrapolate"),
            "bmuf_adam, averaged", bmuf_adam(cell, moments="average"), 0,
        )  # fmt: skip


@claim(source=f"{BMUF}, table 1", seeds=10)
def bmuf_adam_moments() -> Iterator[Comparison]:
    """BMUF-Adam with 4, 16, 32 learners is better with extrapolated moments than with
    averaged ones.
    """
    yield from moments((4, 128), (16, 128), (32, 96))


@claim(source=f"{BMUF}, table 1")
def bmuf_adam_moments_64() -> Iterator[Comparison]:
    """BMUF-Adam with 64 learners is better with extrapolated moments than with averaged
    ones.
    """
    yield from moments((64, 128))


@claim(source=BMUF, seeds=10)
def bmuf_adam_no_loss() -> Iterator[Comparison]:
    """BMUF-Adam with 4 to 64 learners is not more than 2 % worse than one learner that
    trains on the same samples in batches as small as each learner's.
    """
    # Block momentum's gain reaches 63 % of its final value after N blocks.
    several = {
        learners: of(ADAM, learners=learners, steps=8 * blocks)
        for learners, blocks in ((4, 256), (16, 256), (32, 256), (64, 512))
    }
    against = {n: of(cell, learners=1) for n, cell in several.items()}
    for n, cell in several.items():
        yield ask("bmuf_adam", bmuf_adam(cell), "one learner", against[n], 2)
    further = [
        (n, "moments averaged", bmuf_adam(several[n], moments="average"))
        for n in (16, 32)
    ]
    further.append((32, "beta1 0.5", replace(bmuf_adam(several[32]), beta1=0.5)))
    for n, what, method in further:
        yield ask(
            f"bmuf_adam, {what}", method, "one learner", against[n], 2, counts=False
        )


for name, problem, samples, numbers, rates, whole_rates in (
    ("bmuf_adam_sync", "digits", 65_536, (4, 16, 32), ADAM_RATES, LAMB_RATES),
    *(
        (f"bmuf_adam_sync_{problem}", problem, 32_768, (16,), *BLSTM_RATES)
        for problem in ("labels", "strings")
    ),
):
    alone = replace(ADAM, lr=0.0, samples=samples, problem=problem)
    asked, one = [], Arm(alone, rates)
    for learners in numbers:
        whole = of(alone, learners=learners)
        bmuf = Arm(bmuf_adam(whole), rates, alone)
        asked.append(ask("bmuf_adam", bmuf, "one learner", one, 5))
        asked.append(
            ask(
                "allreduce: synchronous Adam", Arm(whole, whole_rates),
                "one learner", one, 5, "at least", learners >= 16,
            )
        )  # fmt: skip
    add(
        name,
        "Synchronous Adam is at least 5 % worse than one learner from 16 learners on, "
        "and BMUF-Adam is not more than 5 % worse.",
        asked,
        f"{BMUF}, tables 2 and 3",
        note="One learner and synchronous Adam have their best rates, and BMUF-Adam "
        "has that of one learner.",
    )

# Fewer bytes


def fewer_bytes(
    learners: int, period: int, keep: float = 1, counts: bool = True
) -> Comparison:
    """Return the comparison of Local SGD, whose averages are compressed, with DDP.

    DDP's ring all-reduce sends 8 (N - 1) / N bytes for each parameter in every step.
    Each learner sends what it keeps to all others.
    """
    options: dict[str, Any] = {"period": period} | ({"keep": keep} if keep < 1 else {})
    whole = of(ADAM, learners=learners, steps=2000)
    sent = (learners - 1) * bytes_of_chunk(keep) / CHUNK if keep < 1 else 0
    fewer = 8 * (learners - 1) / learners * period / sent if keep < 1 else period
    what = f"keep {keep:g}" if keep < 1 else "full precision"
    name = f"local_sgd, period {period}, {what}: {fewer:.0f} times fewer bytes"
    cell = use(whole, "local_sgd", **options)
    return ask(name, cell, "allreduce", whole, 1, counts=counts)


for name, learners, keep, times, seeds in (
    ("fewer_bytes", 4, 0.074, 100, range(10, 35)),
    ("fewer_bytes_16", 16, 0.0157, 100, range(10, 18)),
    ("fewer_bytes_300", 4, 0.02, 300, range(10, 20)),
):
    late = ""
    if times == 300:
        late = " It was a row of `fewer_bytes` until its seeds were in."
    add(
        name,
        f"With {learners} learners, Local SGD that sends {times} times fewer bytes "
        "than DDP, by compressed averages, is not more than 1 % worse than all-reduce.",
        [fewer_bytes(learners, 8, keep)],
        COMPRESSION,
        seeds,
        note=f"Bytes are those of a large model.{late}",
    )


@claim(
    source="this project, for comparison with `fewer_bytes`",
    seeds=range(10, 20),
    note="The row for contrast has short blocks.",
)
def fewer_bytes_long_blocks() -> Iterator[Comparison]:
    """With 4 learners, Local SGD that sends 100 times fewer bytes than DDP, by blocks
    of 100 steps, is not more than 1 % worse than all-reduce.
    """
    yield fewer_bytes(4, 100)
    yield fewer_bytes(4, 8, counts=False)


def halved(learners: int) -> Iterator[Comparison]:
    """Yield comparisons of averages in bfloat16 with those in float32."""
    whole = of(ADAM, learners=learners, steps=8 * 256)
    for cell in (use(whole, "local_sgd", period=8), bmuf_adam(whole)):
        half = use(cell, cell.algorithm, **dict(cell.options), exchange="bfloat16")
        name = f"{cell.algorithm}, exchange"
        yield ask(f"{name} bfloat16", half, f"{name} float32", cell, 2)


for name, learners, number in (
    ("half_the_bytes", 4, 30),
    ("half_the_bytes_16", 16, 42),
):
    add(
        name,
        "With exchange: bfloat16, which sends half the bytes, Local SGD and BMUF-Adam "
        f"with {learners} learners are not more than 2 % worse than with float32.",
        list(halved(learners)),
        COMPRESSION,
        number,
    )


@claim(source="Streaming DiLoCo, arXiv 2501.18512", seeds=32)
def fragments() -> Iterator[Comparison]:
    """Local SGD and BMUF-Adam with 4 learners whose averages are hidden by 4 fragments
    and a delay of 1 are not more than 2 % worse than with averages of the whole model,
    for which all wait.
    """
    whole = of(ADAM, learners=4, steps=1024, problem="labels")
    for cell in (use(whole, "local_sgd", period=8), bmuf_adam(whole)):
        for title, late in (
            ("4 fragments, delay 1", {"fragments": 4, "delay": 1}),
            ("delay 7", {"delay": 7}),
        ):
            hidden = use(cell, cell.algorithm, **dict(cell.options), **late)
            name, against = f"{cell.algorithm}, {title}", f"{cell.algorithm}, delay 0"
            yield ask(name, hidden, against, cell, 2, counts=title != "delay 7")


# IBM

AS_ONE = replace(SGD, samples=65_536)
MANY_RATES = {
    1: RATES, 16: (0.0125, 0.025, 0.05), 32: (0.025, 0.05, 0.1), 64: (0.025, 0.05, 0.1)
}  # fmt: skip
AS_MANY = (
    "One learner and all-reduce have their best rates, and the other methods have that "
    "of all-reduce with equally many learners."
)


def of_many(
    learners: int, algorithm: str = "", times: float = 1, **options: Any
) -> Arm:
    """Return a method at the best rate of all-reduce with as many learners."""
    whole, rates = of(AS_ONE, learners=learners), MANY_RATES[learners]
    if not algorithm:
        return Arm(whole, rates)
    return Arm(use(whole, algorithm, **options), rates, whole, times)


@claim(
    source="IBM, arXiv 1904.04956 (16 GPUs), 1907.05701 and 2002.01119 (64)",
    note=AS_MANY,
)
def ibm_many_learners() -> Iterator[Comparison]:
    """AD-PSGD with 16, 32 and 64 learners is not more than 5 % worse than one learner
    that sees the same number of samples.
    """
    one = of_many(1)
    for learners in (16, 32, 64):
        gossip = of_many(learners, "adpsgd", topology="ring")
        whole = of_many(learners)
        yield ask("adpsgd, ring", gossip, "one learner", one, 5)
        yield ask("adpsgd, ring", gossip, "allreduce", whole, 5, counts=False)
        yield ask("allreduce", whole, "one learner", one, 5, counts=False)


@claim(source="Zhang et al., ICASSP 2020, arXiv 2002.01119 (IBM)", note=AS_MANY)
def ibm_random_ring() -> Iterator[Comparison]:
    """With 64 learners, AD-PSGD and D-PSGD with random neighbours are better than on a
    fixed ring.
    """
    for name, times, topology in (
        ("adpsgd", 1, "random"),
        ("dpsgd", 1, "randomized_ring"),
        ("adpsgd", 4, "random"),
    ):
        random = of_many(64, name, times, topology=topology)
        ring = of_many(64, name, times, topology="ring")
        at = f", {times} times the rate" if times > 1 else ""
        same = ", the same rate" if times > 1 else ""
        yield ask(
            f"{name}, {topology}{at}", random, f"{name}, ring{same}", ring, 0,
            counts=times == 1,
        )  # fmt: skip


@claim(source="IBM, IEEE/ACM TASLP 2021, arXiv 2110.11199, abstract")
def ibm_delay_by_one() -> Iterator[Comparison]:
    """Delay-by-one with 64 learners and a batch of 1,024 samples is not more than 5 %
    worse than all-reduce, each at its best rate.
    """
    whole = replace(SGD, learners=64, batch=16, samples=131_072)
    rates = (0.05, 0.1, 0.2)
    for algorithm in ("d1d_model", "d1d_grad"):
        cell, one = use(whole, algorithm), Arm(whole, rates)
        yield ask(algorithm, Arm(cell, rates), "allreduce", one, 5)
        name, kept = f"{algorithm}, all-reduce's rate", Arm(cell, rates, whole)
        yield ask(name, kept, "allreduce", one, 5, counts=False)


for name, trained, rates, multiples, changes in (
    ("", "a small network and momentum SGD", (0.0125, 0.025, 0.05), (3, 9, 27, 81), {}),
    ("_adam", "a small network and Adam", LAMB_RATES, (3, 9, 27, 81),
        {"optim": "adam"}),
    ("_labels", "a small BLSTM and momentum SGD", (0.15, 0.3, 0.6), (3, 9, 27),
        {"problem": "labels", "samples": 62_208}),
):  # fmt: skip
    ladder = Ladder(
        smallest=of(SGD, learners=16, **{"samples": 248_832, **changes}),
        multiples=multiples,
        methods={
            "adpsgd, ring": ("adpsgd", {"topology": "ring"}, True),
            "adpsgd, random": ("adpsgd", {"topology": "random"}, False),
        },
        rates=rates,
    )
    add(
        f"ibm_batch_ceiling{name}",
        f"With {trained}, AD-PSGD still converges at 3 times the largest batch with "
        "which all-reduce converges.",
        [ladder.first()],
        "IBM, figure 1: 12,288 samples beside 4,096",
        then=ladder.then,
        note=f"A method converges at a batch if its loss is not more than "
        f"{ladder.limit:g} % above all-reduce's at the smallest batch. Batches grow "
        "until the mean loss of all-reduce is above that. AD-PSGD is asked whether it "
        "converges there; its difference to all-reduce at the same batch is for "
        "contrast. Every method has its best rate at every batch.",
    )

LINEAR = Ladder(
    smallest=replace(
        SGD, learners=16, batch=16, samples=147_456, lr=0.1, problem="deep digits",
        clip=NO_CLIP,
    ),
    multiples=(4, 6, 8, 9, 12, 16),
    methods={
        "dpsgd": ("dpsgd", {"topology": "randomized_ring"}, True),
        "adpsgd": ("adpsgd", {"topology": "random"}, True),
    },
    parts=(1, 2, 4),
)  # fmt: skip
for name, ladder, what, limit in (
    (
        "ibm_linear_scaling",
        LINEAR,
        "converge at the first batch at which all-reduce does not",
        "10 % above that of all-reduce at the smallest batch.",
    ),
    (
        "ibm_linear_scaling_divergence",
        replace(LINEAR, limit=100.0),
        "do not diverge at the first batch at which all-reduce does",
        "twice that of all-reduce at the smallest batch, and diverges if it is more. "
        "In IBM's tables a training has either about the loss of the smallest batch or "
        "that of guessing. This limit was set when the seeds of batches of up to 1,536 "
        "were in, none of which is near it.",
    ),
):
    add(
        name,
        "With momentum SGD at the linearly scaled rate, D-PSGD and AD-PSGD with random "
        f"neighbours {what}.",
        [ladder.first()],
        "IBM, arXiv 2112.01433, tables 3 and 5, and 1907.05701, table 1",
        range(1, 11),
        then=ladder.then,
        note=f"A method converges at a batch if its loss is not more than {limit} The "
        f"rate at the smallest batch is {ladder.smallest.lr:g}, and grows as the batch "
        "does. Batches grow until the mean loss of all-reduce is above the limit; "
        "there the others are asked, and compared with all-reduce for contrast, at the "
        "scaled rate and at a half and a quarter of it. The problem and the first rate "
        "were chosen with seed 0, which takes no part.",
    )

# Each method at its best


@claim(
    source="the papers on these methods",
    seeds=16,
    note="Options that are not named have their defaults: the momentum of blocks sets "
    "in by itself, and all methods that average models correct the second moment, but "
    "DiLoCo. Slow momentum is 0.6, as its authors advise for 16 learners.",
)
def rivals() -> Iterator[Comparison]:
    """AD-PSGD, H-ADPSGD, D-PSGD, Local SGD, SlowMo, DiLoCo, BMUF, BMUF-Adam and Adasum
    with 16 learners are not more than 2 % worse than all-reduce, each at its best
    rate.
    """
    cell, rates = of(ADAM, learners=16, steps=320, lr=0.0), (0.001, 0.002, 0.004)
    rivals: dict[str, dict[str, Any]] = {
        "adpsgd": {"topology": "random"},
        "hadpsgd": {"per_node": 4},
        "dpsgd": {},
        "local_sgd": {"period": 8},
        "slowmo": {"period": 8, "momentum": 0.6},
        "diloco": {"period": 8},
        "bmuf": {"period": 8, "second_moment": "consistent"},
        "bmuf_adam": {"period": 8, "second_moment": "consistent"},
        "adasum": {},
    }
    for name, options in rivals.items():
        method, whole = Arm(use(cell, name, **options), rates), Arm(cell, rates)
        yield ask(name, method, "allreduce", whole, 2)
