"""All claims, a row each: what it says, who says it, and which trainings decide it.

This is all that a new row needs:

    one = of(ADAM, learners=16, steps=1000)
    two = of(one, "local_sgd", period=8)
    "blocks": Claim(text="...", source="...", setting="...",
                    comparisons=(ask("local_sgd", two, "allreduce", one, 2),))

`ask(..., 2)` asks whether a method is at most 2 % worse than its reference, and
`ask(..., 5, "at least")` whether it is at least 5 % worse. `best(training, rates)` is a
training at its best rate, from a grid that grows until the best rate is not at its
edge; with `rate_of` it takes over that of another one. A claim may begin with a search
for the case that it is about, see `ladder`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from convergence.claim import Arm, Claim, Comparison
from convergence.ladder import Ladder
from convergence.paired import Question
from convergence.training import DEEP_DIGITS, DIGITS, LABELS, STRINGS, Training
from espnet_distopt.algorithms.block.compression import CHUNK, bytes_of_chunk

# How rows are written


def of(
    base: Training,
    algorithm: str = "",
    *,
    steps: int = 0,
    change: dict[str, Any] | None = None,
    learners: int = 0,
    **options: Any,
) -> Training:
    """Return a training that differs from another one.

    Args:
        base: the other one.
        algorithm: the algorithm, if it differs; then the options do, too.
        steps: the number of steps of a learner; 0 keeps the number of all samples.
        change: fields of the training that differ.
        learners: the number of learners; 0 keeps it.
        options: the options of the algorithm.
    """
    found = replace(base, learners=learners or base.learners, **(change or {}))
    if algorithm:
        given = tuple(options.items())
        found = replace(found, algorithm=algorithm, options=given)
    if steps:
        found = replace(found, samples=steps * found.learners * found.batch)
    return found


def best(
    cell: Training,
    rates: tuple[float, ...],
    rate_of: Training | None = None,
    times: float = 1,
) -> Arm:
    """Return a training at its best rate, or at that of another one, times a factor."""
    return Arm(cell=cell, rates=rates, tuned_on=rate_of, factor=times)


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
    arms = [a if isinstance(a, Arm) else Arm(cell=a) for a in (method, reference)]
    return Comparison(
        name=name,
        arm=arms[0],
        against=against,
        reference=arms[1],
        question=Question(limit, sense),
        counts=counts,
    )


SGD = Training(
    algorithm="allreduce", learners=1, batch=4, samples=0, lr=0.0, seed=0,
    problem=DIGITS,
)  # fmt: skip
ADAM = replace(SGD, optim="adam", lr=0.001)

# Sentences that settings share

WITH_SGD = "The optimizer is SGD with momentum 0.9."
WARM_UP = "The rate is constant after a linear warm-up over a tenth of the steps."
DIGITS_ARE = f"The problem is a {DIGITS}."
WITH_ADAM = (
    "All trainings use Adam with a learning rate of 0.001, and a learner's step has 4 "
    "samples."
)
ADAM_CLIPPED = (
    f"{WITH_ADAM} The rate is constant after a linear warm-up over a tenth of the "
    "steps, and gradients are clipped to norm 5 before each optimizer's step. "
    f"{DIGITS_ARE}"
)
BLOCKS = (
    "Blocks have 8 steps. With block momentum, blocks end in a plain average in the "
    "first fifth of the steps (a warm-up by hand); after that, block momentum is 1 - "
    "1/N. BMUF-Adam leaves the second moment alone, as in its paper."
)

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
            method = of(whole, algorithm, **options, second_moment=moment)
            yield ask(name, method, "allreduce", whole, limit, sense)


def clipped() -> Iterator[Comparison]:
    """Yield comparisons where each learner clips its own gradients.

    All-reduce's gradients have a norm of about 1.2 there, and a learner's of about 4.5.
    """
    whole = of(ADAM, learners=16, steps=500, change={"clip": 1.5})
    for norm in (1.5, 6.0):
        own = replace(whole, clip=norm)
        for name, method in (
            ("adpsgd", of(own, "adpsgd", second_moment="consistent")),
            (
                "local_sgd, period 8",
                of(own, "local_sgd", period=8, second_moment="consistent"),
            ),
        ):
            yield ask(
                f"{name}, norm {norm:g}", method, "allreduce, norm 1.5", whole, 2,
                counts=norm == 1.5,
            )  # fmt: skip


# Adasum

ALONE = replace(SGD, samples=32_768)
RATES = (0.00125, 0.0025, 0.005)
ADAM_RATES = (0.00025, 0.0005, 0.001)
LAMB_RATES = (0.0005, 0.001, 0.002)


def adasum_rates() -> Iterator[Comparison]:
    """Yield comparisons at the rate of one learner; the sum is all-reduce, N times."""
    for learners, times in ((4, 1), (16, 1), (64, 1), (16, 4)):
        whole = of(ALONE, learners=learners)
        at = f", {times} times the rate" if times > 1 else ""
        adasum = best(of(whole, "adasum"), RATES, ALONE, times)
        one = best(ALONE, RATES)
        yield ask(f"adasum{at}", adasum, "one learner, best rate", one, 10)
        total = best(whole, RATES, ALONE, times * learners)
        yield ask(
            f"sum{at}", total, f"adasum{at}", adasum, 10, "at least", learners >= 16
        )


def adasum_normalised() -> Iterator[Comparison]:
    """Yield comparisons with Adam and LAMB, at the rate of one learner."""
    for optim, rates in (("adam", ADAM_RATES), ("lamb", LAMB_RATES)):
        alone = replace(ALONE, optim=optim)
        whole, one = of(alone, learners=16), best(alone, rates)
        adasum = best(of(whole, "adasum"), rates, alone)
        yield ask(f"adasum, {optim}", adasum, "one learner", one, 10)
        mean = best(whole, rates, alone, 16)
        name = f"allreduce with 16 times the rate, {optim}"
        yield ask(name, mean, "one learner", one, 10, counts=False)


def adasum_periods() -> Iterator[Comparison]:
    """Yield comparisons with local steps, at the rate of one learner."""
    for optim, rates in (("sgd", RATES), ("adam", ADAM_RATES)):
        alone = replace(ALONE, optim=optim)
        for period in (8, 64):
            adasum = of(alone, "adasum", learners=16, period=period)
            yield ask(
                f"adasum, period {period}, {optim}",
                best(adasum, rates, alone),
                "one learner",
                best(alone, rates),
                10,
            )


def fewer_steps() -> Iterator[Comparison]:
    """Yield comparisons of LAMB after 70 % of the steps, with Adasum, with all."""
    digits, labels = (0.005, 0.01, 0.02), (0.01, 0.02, 0.04)
    for short, problem, batch, rates in (
        ("digits", DIGITS, 16, digits),
        ("digits", DIGITS, 64, digits),
        ("labels", LABELS, 16, labels),
    ):
        change = {"optim": "lamb", "problem": problem, "batch": batch}
        mean = of(SGD, learners=16, steps=300, change=change)
        adasum = of(mean, "adasum", steps=210)
        yield ask(
            f"adasum, {short}, 16 x {batch}", best(adasum, rates),
            "allreduce, 300 steps", best(mean, rates), 0,
        )  # fmt: skip


# BMUF-Adam


def bmuf_adam(cell: Training, **options: Any) -> Training:
    """Return BMUF-Adam as in its paper; momentum sets in after a fifth of the steps."""
    known = {"period": 8, "warmup": cell.steps // 5, "second_moment": "local"}
    return of(cell, "bmuf_adam", **known, **options)


def moments(*learners_and_blocks: tuple[int, int]) -> Iterator[Comparison]:
    """Yield comparisons of extrapolated moments with averaged ones."""
    for learners, blocks in learners_and_blocks:
        cell = of(ADAM, learners=learners, steps=8 * blocks)
        yield ask(
            "bmuf_adam, extrapolated", bmuf_adam(cell, moments="extrapolate"),
            "bmuf_adam, averaged", bmuf_adam(cell, moments="average"), 0,
        )  # fmt: skip


def small_batches() -> Iterator[Comparison]:
    """Yield comparisons of BMUF-Adam with one learner that sees as many samples.

    The gain of block momentum reaches 63 % of its final value after N blocks; so there
    are at least 8 N.
    """
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


def synchronous(
    alone: Training,
    numbers: tuple[int, ...],
    rates: tuple[float, ...],
    whole_rates: tuple[float, ...],
) -> Iterator[Comparison]:
    """Yield comparisons of BMUF-Adam and synchronous Adam with one learner."""
    one = best(alone, rates)
    for learners in numbers:
        whole = of(alone, learners=learners)
        bmuf = best(bmuf_adam(whole), rates, alone)
        yield ask("bmuf_adam", bmuf, "one learner", one, 5)
        yield ask(
            "allreduce: synchronous Adam", best(whole, whole_rates), "one learner", one,
            5, "at least", learners >= 16,
        )  # fmt: skip


def is_synchronous(problem: str, asked: Iterator[Comparison]) -> Claim:
    """Return the claim of the paper's tables 2 and 3 about a problem."""
    return Claim(
        text="Synchronous Adam is at least 5 % worse than one learner from 16 learners "
        "on, and BMUF-Adam is not more than 5 % worse.",
        source=f"{BMUF}, tables 2 and 3",
        setting="A learner's step has 4 samples, and all trainings see equally many. "
        "One learner and synchronous Adam have their best rates, and BMUF-Adam has "
        f"that of one learner. {WARM_UP} {BLOCKS} The problem is a {problem}.",
        comparisons=tuple(asked),
    )


def with_blstm(problem: str) -> Claim:
    """Return that claim about a BLSTM and 16 learners."""
    alone = replace(ADAM, lr=0.0, samples=32_768, problem=problem)
    rates, whole = (0.001, 0.002, 0.004), (0.002, 0.004, 0.008)
    return is_synchronous(problem, synchronous(alone, (16,), rates, whole))


# Fewer bytes


def sending(learners: int, period: int, keep: float = 1) -> tuple[str, Training]:
    """Return Local SGD that sends compressed averages, and its name.

    DDP's ring all-reduce sends 8 (N - 1) / N bytes for each parameter in every step.
    Each learner sends what it keeps to all others.
    """
    options: dict[str, Any] = {"period": period} | ({"keep": keep} if keep < 1 else {})
    cell = of(of(ADAM, learners=learners, steps=2000), "local_sgd", **options)
    sent = (learners - 1) * bytes_of_chunk(keep) / CHUNK if keep < 1 else 0
    fewer = 8 * (learners - 1) / learners * period / sent if keep < 1 else period
    what = f"keep {keep:g}" if keep < 1 else "full precision"
    return f"local_sgd, period {period}, {what}: {fewer:.0f} times fewer bytes", cell


def against_ddp(sends: tuple[str, Training], counts: bool = True) -> Comparison:
    """Return the comparison of Local SGD with all-reduce."""
    name, cell = sends
    return ask(name, cell, "allreduce", of(cell, "allreduce"), 1, counts=counts)


def fewer_bytes(
    sends: tuple[str, Training],
    times: int,
    seeds: range,
    note: str,
    *contrast: Comparison,
) -> Claim:
    """Return the claim that compressed averages cost no loss."""
    cell = sends[1]
    return Claim(
        text=f"With {cell.learners} learners, Local SGD that sends {times} times fewer "
        "bytes than DDP, by compressed averages, is not more than 1 % worse "
        "than all-reduce.",
        source=COMPRESSION,
        setting=f"{ADAM_CLIPPED} Bytes are those of a large model. {note}",
        comparisons=(against_ddp(sends), *contrast),
        seeds=tuple(seeds),
    )


def half_the_bytes(learners: int, seeds: range) -> Claim:
    """Return the claim that bfloat16, which sends half the bytes, costs no loss."""
    whole = of(ADAM, learners=learners, steps=8 * 256)
    asked = []
    for cell in (of(whole, "local_sgd", period=8), bmuf_adam(whole)):
        halved = of(cell, cell.algorithm, **dict(cell.options), exchange="bfloat16")
        name = f"{cell.algorithm}, exchange"
        asked.append(ask(f"{name} bfloat16", halved, f"{name} float32", cell, 2))
    return Claim(
        text="With exchange: bfloat16, which sends half the bytes, Local SGD and "
        f"BMUF-Adam with {learners} learners are not more than 2 % worse than with "
        "float32.",
        source=COMPRESSION,
        setting=f"{ADAM_CLIPPED} {BLOCKS}",
        comparisons=tuple(asked),
        seeds=tuple(seeds),
    )


def fragments() -> Iterator[Comparison]:
    """Yield comparisons of hidden averages with those for which all wait."""
    whole = of(ADAM, learners=4, steps=1024, change={"problem": LABELS})
    for cell in (of(whole, "local_sgd", period=8), bmuf_adam(whole)):
        for title, late in (
            ("4 fragments, delay 1", {"fragments": 4, "delay": 1}),
            ("delay 7", {"delay": 7}),
        ):
            options: dict[str, Any] = {**dict(cell.options), **late}
            hidden = of(cell, cell.algorithm, **options)
            name, against = f"{cell.algorithm}, {title}", f"{cell.algorithm}, delay 0"
            yield ask(name, hidden, against, cell, 2, counts=title != "delay 7")


# IBM

AS_ONE = replace(SGD, samples=65_536)
MANY_RATES = {
    1: RATES, 16: (0.0125, 0.025, 0.05), 32: (0.025, 0.05, 0.1), 64: (0.025, 0.05, 0.1)
}  # fmt: skip
AS_MANY = (
    f"{WITH_SGD} A learner's step has 4 samples, and all trainings see 65,536. "
    f"{WARM_UP} One learner and all-reduce have their best rates, and the other "
    f"methods have that of all-reduce with equally many learners. {DIGITS_ARE}"
)


def of_many(
    learners: int, algorithm: str = "", times: float = 1, **options: Any
) -> Arm:
    """Return a method at the best rate of all-reduce with as many learners."""
    whole = of(AS_ONE, learners=learners)
    cell = of(whole, algorithm, **options)
    return best(cell, MANY_RATES[learners], whole if algorithm else None, times)


def many_learners() -> Iterator[Comparison]:
    """Yield comparisons of AD-PSGD and all-reduce with one learner."""
    one = of_many(1)
    for learners in (16, 32, 64):
        gossip = of_many(learners, "adpsgd", topology="ring")
        whole = of_many(learners)
        yield ask("adpsgd, ring", gossip, "one learner", one, 5)
        yield ask("adpsgd, ring", gossip, "allreduce", whole, 5, counts=False)
        yield ask("allreduce", whole, "one learner", one, 5, counts=False)


def random_neighbours() -> Iterator[Comparison]:
    """Yield comparisons of random neighbours with those on a fixed ring."""
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


def delayed() -> Iterator[Comparison]:
    """Yield comparisons of both readings of delay-by-one with all-reduce."""
    whole = replace(SGD, learners=64, batch=16, samples=131_072)
    rates = (0.05, 0.1, 0.2)
    for algorithm in ("d1d_model", "d1d_grad"):
        cell, one = of(whole, algorithm), best(whole, rates)
        yield ask(algorithm, best(cell, rates), "allreduce", one, 5)
        name, kept = f"{algorithm}, all-reduce's rate", best(cell, rates, whole)
        yield ask(name, kept, "allreduce", one, 5, counts=False)


def ceiling(
    trained: str,
    ladder: Ladder,
    setting: str,
) -> Claim:
    """Return the claim that AD-PSGD has a larger ceiling, each at its best rate."""
    cell = ladder.smallest
    return Claim(
        text=f"With {trained}, AD-PSGD still converges at 3 times the largest batch "
        "with which all-reduce converges.",
        source="IBM, figure 1: 12,288 samples beside 4,096",
        setting="A method converges at a batch if its loss at its best rate is not "
        f"more than {ladder.limit:g} % above all-reduce's at the smallest batch. "
        "Batches grow by a factor of 3, with equally many samples, until the mean loss "
        "of all-reduce is above that. AD-PSGD is asked whether it converges there; its "
        "difference to all-reduce at the same batch is for contrast. Every method has "
        f"its best rate at every batch. {setting} {WARM_UP} The problem is a "
        f"{cell.problem}. The smallest batch has {cell.learners * cell.batch} samples "
        f"of {cell.learners} learners, with which a training has {cell.steps:,} steps.",
        comparisons=(ladder.first(),),
        then=ladder.then,
    )


def scaled(ladder: Ladder, what: str, limit: str, note: str) -> Claim:
    """Return a claim about decentralised methods at the linearly scaled rate."""
    cell = ladder.smallest
    return Claim(
        text="With momentum SGD at the linearly scaled rate, D-PSGD and AD-PSGD with "
        f"random neighbours {what}.",
        source="IBM, arXiv 2112.01433, tables 3 and 5, and 1907.05701, table 1",
        setting=f"A method converges at a batch if its loss is not more than {limit}. "
        f"{note} The smallest batch has {cell.learners * cell.batch} samples of "
        f"{cell.learners} learners. The rate there is {cell.lr:g}, and grows as the "
        "batch does, with equally many samples. Batches grow until the mean loss of "
        "all-reduce is above the limit; there the others are asked, and compared with "
        "all-reduce for contrast, at the scaled rate and at a half and a quarter of "
        f"it. {WITH_SGD} Gradients are not clipped. {WARM_UP} The problem is a "
        f"{cell.problem}. The problem and the first rate were chosen with seed 0, "
        "which takes no part. There were 5 seeds at first, and 5 more because these "
        "did not decide.",
        comparisons=(ladder.first(),),
        seeds=tuple(range(1, 11)),
        then=ladder.then,
    )


AT_BEST: dict[str, tuple[str, dict[str, str], bool]] = {
    "adpsgd, ring": ("adpsgd", {"topology": "ring"}, True),
    "adpsgd, random": ("adpsgd", {"topology": "random"}, False),
}
SMALLEST = replace(SGD, learners=16, samples=248_832)
LINEAR = Ladder(
    smallest=replace(
        SGD, learners=16, batch=16, samples=147_456, lr=0.1, problem=DEEP_DIGITS,
        clip=1e9,
    ),
    multiples=(4, 6, 8, 9, 12, 16),
    methods={
        "dpsgd": ("dpsgd", {"topology": "randomized_ring"}, True),
        "adpsgd": ("adpsgd", {"topology": "random"}, True),
    },
    parts=(1, 2, 4),
)  # fmt: skip

# Each method at its best

RIVALS_WHOLE = of(ADAM, learners=16, steps=320, change={"lr": 0.0})
RIVALS: dict[str, dict[str, Any]] = {
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


def rivals() -> Iterator[Comparison]:
    """Yield comparisons of each method with all-reduce, both at their best rates."""
    rates = (0.001, 0.002, 0.004)
    for name, options in RIVALS.items():
        cell = of(RIVALS_WHOLE, name, **options)
        whole = best(RIVALS_WHOLE, rates)
        yield ask(name, best(cell, rates), "allreduce", whole, 2)


CLAIMS: dict[str, Claim] = {
    "adam_clipping": Claim(
        text="With 16 learners that clip their own gradients to a norm of 1.5, AD-PSGD "
        "and Local SGD with Adam and `second_moment: consistent` are not more than 2 % "
        "worse than all-reduce, which clips the mean gradient.",
        source="this project, `docs/algorithms/optimizers.md`",
        setting=f"{WITH_ADAM} {WARM_UP} {DIGITS_ARE}",
        comparisons=tuple(clipped()),
    ),
    "adam_local_moment": Claim(
        text="With `second_moment: local`, AD-PSGD, H-ADPSGD, D-PSGD and Local SGD "
        "with Adam are at least 2 % worse than all-reduce with the same settings.",
        source=CONSISTENT,
        setting=ADAM_CLIPPED,
        comparisons=tuple(second_moments("local", 2, "at least")),
        seeds=tuple(range(10)),  # Five left one question open.
    ),
    "adasum_lamb_steps": Claim(
        text="LAMB with Adasum is as good after 210 steps as LAMB with the mean after "
        "300, each at its best rate.",
        source="Maleki et al., arXiv 2006.02924, abstract (30 % fewer steps)",
        setting=f"There are 16 learners. {WARM_UP} The digits are a {DIGITS}. The "
        f"labels are a {LABELS}.",
        comparisons=tuple(fewer_steps()),
    ),
    "adasum_period": Claim(
        text="Adasum with 16 learners that combine their updates every 8 or 64 steps, "
        "at the best rate of one learner, is not more than 10 % worse than one "
        "learner.",
        source=MALEKI,
        setting="The optimizer is SGD with momentum 0.9, or Adam. A learner's step has "
        f"4 samples, and all trainings see 32,768. {WARM_UP} {DIGITS_ARE}",
        comparisons=tuple(adasum_periods()),
    ),
    "adasum_rate": Claim(
        text="Adasum with 4 to 64 learners at the best rate of one learner, and with "
        "16 at 4 times that rate, is not more than 10 % worse than one learner; the "
        "sum is at least 10 % worse than Adasum from 16 learners on.",
        source=f"{MALEKI}, the study with LeNet-5",
        setting=f"{WITH_SGD} A learner's step has 4 samples, and all trainings see "
        f"32,768. {WARM_UP} The sum is all-reduce with N times the rate. {DIGITS_ARE} "
        "That Adasum adds orthogonal updates and averages parallel ones is arithmetic, "
        "which `tests/algorithms/test_adasum_arithmetic.py` checks.",
        comparisons=tuple(adasum_rates()),
    ),
    "adasum_rate_adam": Claim(
        text="With Adam and LAMB, Adasum with 16 learners at the best rate of one "
        "learner is not more than 10 % worse than one learner.",
        source=MALEKI,
        setting="A learner's step has 4 samples, and all trainings see 32,768. "
        f"{WARM_UP} {DIGITS_ARE}",
        comparisons=tuple(adasum_normalised()),
        seeds=tuple(range(10)),  # Five left one question open.
    ),
    "bmuf_adam_moments": Claim(
        text="BMUF-Adam with 4, 16, 32 learners is better with extrapolated moments "
        "than with averaged ones.",
        source=f"{BMUF}, table 1",
        setting=f"{WITH_ADAM} {WARM_UP} {BLOCKS} {DIGITS_ARE}",
        comparisons=tuple(moments((4, 128), (16, 128), (32, 96))),
        seeds=tuple(range(10)),  # Five left one question open.
    ),
    "bmuf_adam_moments_64": Claim(
        text="BMUF-Adam with 64 learners is better with extrapolated moments than with "
        "averaged ones.",
        source=f"{BMUF}, table 1",
        setting=f"{WITH_ADAM} {WARM_UP} {BLOCKS} {DIGITS_ARE}",
        comparisons=tuple(moments((64, 128))),
    ),
    "bmuf_adam_no_loss": Claim(
        text="BMUF-Adam with 4 to 64 learners is not more than 2 % worse than one "
        "learner that trains on the same samples in batches as small as each "
        "learner's.",
        source=BMUF,
        setting=f"{WITH_ADAM} Beta1 is 0.9, and Adam's moments are extrapolated, "
        f"unless a row says otherwise. {WARM_UP} {BLOCKS} {DIGITS_ARE}",
        comparisons=tuple(small_batches()),
        seeds=tuple(range(10)),  # Five left it open with 64 learners.
    ),
    "bmuf_adam_sync": is_synchronous(
        DIGITS,
        synchronous(
            replace(ADAM, lr=0.0, samples=65_536),
            (4, 16, 32),
            ADAM_RATES,
            LAMB_RATES,
        ),
    ),
    "bmuf_adam_sync_labels": with_blstm(LABELS),
    "bmuf_adam_sync_strings": with_blstm(STRINGS),
    "fewer_bytes": fewer_bytes(
        sending(4, 8, 0.074),
        100,
        range(10, 35),
        "There were 10 seeds at first, and 15 more because these did not decide.",
    ),
    "fewer_bytes_16": fewer_bytes(
        sending(16, 8, 0.0157),
        100,
        range(10, 18),
        "There were 5 seeds at first, and 3 more because these did not decide.",
    ),
    "fewer_bytes_300": fewer_bytes(
        sending(4, 8, 0.02),
        300,
        range(10, 20),
        "This was a further row of the claim `fewer_bytes` first, and became a claim "
        "after its seeds were in.",
    ),
    "fewer_bytes_long_blocks": Claim(
        text="With 4 learners, Local SGD that sends 100 times fewer bytes than DDP, by "
        "blocks of 100 steps, is not more than 1 % worse than all-reduce.",
        source="this project, for comparison with `fewer_bytes`",
        setting=f"{ADAM_CLIPPED} The row for contrast has short blocks.",
        comparisons=(
            against_ddp(sending(4, 100)),
            against_ddp(sending(4, 8), counts=False),
        ),
        seeds=tuple(range(10, 20)),
    ),
    "fragments": Claim(
        text="Local SGD and BMUF-Adam with 4 learners whose averages are hidden by 4 "
        "fragments and a delay of 1 are not more than 2 % worse than with averages of "
        "the whole model, for which all wait.",
        source="Streaming DiLoCo, arXiv 2501.18512",
        setting=f"{WITH_ADAM} There are 1,024 steps. {WARM_UP} Gradients are clipped "
        f"to norm 5 before each optimizer's step. {BLOCKS} The problem is a {LABELS}.",
        comparisons=tuple(fragments()),
        # Five seeds left one question open; about 32 were said to decide.
        seeds=tuple(range(32)),
    ),
    "half_the_bytes": half_the_bytes(4, range(10)),
    # Five seeds left an interval from -4.2 to +14.9 %.
    "half_the_bytes_16": half_the_bytes(16, range(16)),
    "ibm_batch_ceiling": ceiling(
        "a small network and momentum SGD",
        Ladder(
            smallest=SMALLEST,
            multiples=(3, 9, 27, 81),
            methods=AT_BEST,
            rates=(0.0125, 0.025, 0.05),
        ),
        WITH_SGD,
    ),
    "ibm_batch_ceiling_adam": ceiling(
        "a small network and Adam",
        Ladder(
            smallest=replace(SMALLEST, optim="adam"),
            multiples=(3, 9, 27, 81),
            methods=AT_BEST,
            rates=(0.0005, 0.001, 0.002),
        ),
        "The optimizer is Adam, with `second_moment: consistent`.",
    ),
    "ibm_batch_ceiling_labels": ceiling(
        "a small BLSTM and momentum SGD",
        Ladder(
            smallest=replace(SMALLEST, problem=LABELS, samples=62_208),
            multiples=(3, 9, 27),
            methods=AT_BEST,
            rates=(0.15, 0.3, 0.6),
        ),
        WITH_SGD,
    ),
    "ibm_delay_by_one": Claim(
        text="Delay-by-one with 64 learners and a batch of 1,024 samples is not more "
        "than 5 % worse than all-reduce, each at its best rate.",
        source="IBM, IEEE/ACM TASLP 2021, arXiv 2110.11199, abstract",
        setting=f"{WITH_SGD} {WARM_UP} {DIGITS_ARE}",
        comparisons=tuple(delayed()),
    ),
    "ibm_linear_scaling": scaled(
        LINEAR,
        "converge at the first batch at which all-reduce does not",
        "10 % above that of all-reduce at the smallest batch",
        "",
    ),
    "ibm_linear_scaling_divergence": scaled(
        replace(LINEAR, limit=100.0),
        "do not diverge at the first batch at which all-reduce does",
        "twice that of all-reduce at the smallest batch, and diverges if it is more",
        "In IBM's tables a training has either about the loss of the smallest batch or "
        "that of guessing. This limit was set when the seeds of batches of up to 1,536 "
        "were in, none of which is near it.",
    ),
    "ibm_many_learners": Claim(
        text="AD-PSGD with 16, 32 and 64 learners is not more than 5 % worse than one "
        "learner that sees the same number of samples.",
        source="IBM, arXiv 1904.04956 (16 GPUs), 1907.05701 and 2002.01119 (64)",
        setting=AS_MANY,
        comparisons=tuple(many_learners()),
    ),
    "ibm_random_ring": Claim(
        text="With 64 learners, AD-PSGD and D-PSGD with random neighbours are better "
        "than on a fixed ring.",
        source="Zhang et al., ICASSP 2020, arXiv 2002.01119 (IBM)",
        setting=AS_MANY,
        comparisons=tuple(random_neighbours()),
    ),
    "no_loss_adam": Claim(
        text="With `second_moment: consistent`, AD-PSGD, H-ADPSGD, D-PSGD and Local "
        "SGD with Adam are not more than 2 % worse than all-reduce with the same "
        "settings.",
        source=CONSISTENT,
        setting=ADAM_CLIPPED,
        comparisons=tuple(second_moments("consistent", 2, "at most")),
        # Five seeds left five questions open; up to 13 were said to decide them.
        seeds=tuple(range(16)),
    ),
    "rivals": Claim(
        text="AD-PSGD, H-ADPSGD, D-PSGD, Local SGD, SlowMo, DiLoCo, BMUF, BMUF-Adam "
        "and Adasum with 16 learners are not more than 2 % worse than all-reduce, each "
        "at its best rate.",
        source="the papers on these methods",
        setting="All trainings use Adam, and a learner's step has 4 samples. "
        f"{WARM_UP} Blocks have 8 steps. The momentum of SlowMo, DiLoCo, BMUF and "
        "BMUF-Adam sets in by itself. Slow momentum is 0.6, as its authors advise for "
        "16 learners, and H-ADPSGD has nodes of 4. All methods that average models "
        f"correct the second moment, but DiLoCo. {DIGITS_ARE}",
        comparisons=tuple(rivals()),
        # Five seeds left six questions open; up to 16 were said to decide four.
        seeds=tuple(range(16)),
    ),
}
"""Name -> claim, in alphabetical order."""
