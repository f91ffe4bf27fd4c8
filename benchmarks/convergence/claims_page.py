"""The module writes the pages of claims from results that are there already."""

import math
from collections import Counter
from collections.abc import Mapping
from statistics import mean

from convergence.claim import Answer, Claim, Comparison, Results
from convergence.stream_problems import GAIN, HELD_OUT, MELS, NOISE, SPEED, TASKS
from convergence.training import NO_CLIP, Training

PAGE, DETAILS = "claims.md", "claims_in_detail.md"
"""The file names of the pages."""

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}

ENVIRONMENT = "FSDD=/path/to/free-spoken-digit-dataset"

HEAD = """# Which claims hold

Claims about the methods of this package, by papers and by this project, on small
problems of real speech. [How they are examined](#how-claims-are-examined) stands below
the table. A name leads to [all figures](claims_in_detail.md) of its claim.
"""

DETAIL = f"""# All figures of the claims

Each claim of [the table](claims.md) with all its comparisons, what their trainings
share, where they were computed, and the command that computes them.

The learning rate is constant after a linear warm-up over a tenth of the steps. Options
of a method that are not named have their defaults. The problems are streams of samples,
which are drawn anew from 2,400 recordings of single digits by six speakers (FSDD):
{MELS} log-mels, with a gain of up to {GAIN:g} dB, a logarithm of speed of up to
{SPEED:g}, and noise of {NOISE:g} standard deviations. {HELD_OUT:,} samples that are
drawn once from 600 other recordings are held out.

"""

HOW = """## How claims are examined

Virtual learners train with real gradients, in one process; see
[simulation.md](simulation.md). A laboratory that keeps all of them as rows of a
matrix computes what it has, and the simulation, whose result is the same, the rest.
The problems are small, so a claim that holds here may fail on a large corpus, and the
other way round.

Each claim rests on comparisons of a method with a reference. Both are trained with the
same seeds: a seed gives both the same initial model and the same samples. A figure is
the relative difference of their held-out losses in per cent (above zero, the method is
worse), as the mean over the seeds with its 95 % interval by Student's t. The question
was written down before its seeds were trained, unless the claim says otherwise. Its
answer is "holds" or "does not hold" only if the whole interval is on one side of the
limit; otherwise it is "undecided". Where a method has its best learning rate, that was
chosen by a seed that takes no part in comparisons, from a grid that was widened until
the best rate was not at its edge.

Where the first seeds left a question open, more were trained, about as many as were
said to decide it, or 30 if no number was said, and the figure is over all of them. Such
an interval holds the true difference in somewhat fewer than 95 of 100 cases, because
the first seeds decided that there would be more.

A claim *holds* if the answers to all its questions are yes. It is *undecided* if some
are open and none is no. If some are no, it *holds in part* where another is yes, and
*does not hold here* otherwise. It is *not yet measured* while trainings are missing.
The figure in the table is that of the answer that speaks most against the claim: a no
before an open one, and then the one that is furthest on the wrong side of its limit.

The command below each claim, on the page with its figures, computes what is missing,
and writes both pages. The results are in
[benchmarks/results/claims.jsonl](../benchmarks/results/claims.jsonl), one line for each
training.
"""


def write(
    claims: Mapping[str, Claim],
    results: Results,
    where: Mapping[str, Mapping[str, int]],
) -> dict[str, str]:
    """Return the texts of the pages: the table, and all figures, by file names.

    Args:
        claims: name -> claim; the table has them in alphabetical order.
        results: the results that are there.
        where: name -> a phrase for a machine and a commit -> the number of cells that
            were computed there.
    """
    lines = [
        HEAD,
        "| claim | source | verdict | figure | seeds |",
        "| :-- | :-- | :-- | :-- | --: |",
    ]
    for name, claim in sorted(claims.items()):
        lines.append(
            f"| [{name}]({DETAILS}#{name}): {claim.text} | {claim.source} | "
            f"{verdict(claim, results)} | {_figure(claim, results)} | "
            f"{len(claim.seeds)} |"
        )
    lines += ["", HOW.rstrip()]
    problems = [f"- **{name}**: {task.about}." for name, task in TASKS.items()]
    details = [DETAIL + "\n".join(problems)]
    for name, claim in sorted(claims.items()):
        details += ["", *_section(name, claim, results, where[name])]
    return {
        PAGE: "\n".join(lines) + "\n",
        DETAILS: "\n".join(details) + "\n",
    }


def verdict(claim: Claim, results: Results) -> str:
    """Return the verdict on a claim, or how much of it is measured."""
    if not claim.is_complete(results):
        cells = claim.cells(results)
        known = sum(results(cell) is not None for cell in cells)
        if known == len(cells):
            return "undecided, as the best learning rate of a method was not found"
        return f"not yet measured: {known} of {len(cells)} cells"
    counted = Counter(a.verdict for a in claim.answers(results) if a.comparison.counts)
    if not counted:
        return "undecided, as the case that it is about was not found"
    if counted["holds"] == counted.total():
        return "holds"
    if counted["does not hold"] == 0:
        return "undecided"
    return "holds in part" if counted["holds"] else "does not hold here"


def _figure(claim: Claim, results: Results) -> str:
    """Return the difference of the answer that decides the verdict, with its method."""
    if not claim.is_complete(results):
        return ""
    counted = [a for a in claim.answers(results) if a.comparison.counts]
    if not counted:
        return ""
    worst = max(counted, key=_against)
    return f"{worst.difference or 'diverged'}, {worst.comparison.name}"


def _against(answer: Answer) -> tuple[int, float]:
    """Return the weight of an answer against its claim: its kind, then its mean."""
    rank = ("holds", "undecided", "does not hold").index(answer.verdict)
    if answer.difference is None:
        return rank, math.inf
    question = answer.comparison.question
    beyond = answer.difference.mean - question.limit
    return rank, beyond if question.sense == "at most" else -beyond


def _section(
    name: str, claim: Claim, results: Results, where: Mapping[str, int]
) -> list[str]:
    answers = list(claim.answers(results))
    lines = [f"## {name}", "", claim.text, "", f"Source: {claim.source}.", ""]
    lines += [f"{_shared(claim.cells(results))} {claim.note}".rstrip(), ""]
    lines.append(f"Verdict: {verdict(claim, results)}. ")
    lines[-1] += _sentence(claim.asked(results), answers)
    if answers:
        lines += ["", *_table(claim, answers)]
    if where:
        cells = "; ".join(f"{each} ({count} cells)" for each, count in where.items())
        lines += ["", f"Computed on {cells}."]
    command = f"{ENVIRONMENT} python benchmarks/claims.py --only {name}"
    return [*lines, "", f"    {command}"]


def _shared(cells: list[Training]) -> str:
    """Return what all trainings of a claim share, as a sentence."""
    described = [
        [
            f"the problem is {cell.problem}",
            f"the optimizer is {OPTIMIZERS[cell.optim]}",
            f"beta1 is {cell.beta1:g}",
            f"a learner's step has {cell.batch} samples",
            f"a training has {cell.samples:,} samples",
            f"gradients are clipped to norm {cell.clip:g} before each optimizer's step"
            if cell.clip < NO_CLIP
            else "gradients are not clipped",
        ]
        for cell in cells
    ]
    same = [each[0] for each in zip(*described, strict=True) if len(set(each)) == 1]
    return f"In all trainings {', '.join(same[:-1])} and {same[-1]}."


def _sentence(comparisons: list[Comparison], answers: list[Answer]) -> str:
    """Return what the answers say together."""
    counted = [a for a in answers if a.comparison.counts]
    asked = sum(c.counts for c in comparisons)
    if not asked:
        return "Which comparisons answer the question depends on the first ones."
    yes = sum(a.verdict == "holds" for a in counted)
    open_ = [a for a in counted if a.verdict == "undecided"]
    text = f"The answer is yes in {yes} of {asked} comparisons"
    text += f" and open in {len(open_)}." if open_ else "."
    return text


def _table(claim: Claim, answers: list[Answer]) -> list[str]:
    seeds = f"{len(claim.seeds)} seeds"
    lines = [
        "| method | options | learners | steps | rate | held-out loss, mean of "
        f"{seeds} | reference | its rate | its loss | difference | question | answer |",
        "| :-- | :-- | --: | --: | --: | --: | :-- | --: | --: | --: | :-- | :-- |",
    ]
    return lines + [_row(answer) for answer in answers]


def _row(answer: Answer) -> str:
    comparison, cell = answer.comparison, answer.comparison.arm.cell
    said, found = str(answer.verdict), answer.difference
    if found and said == "undecided":
        enough = comparison.question.seeds_to_decide(found)
        said += f"; about {enough} seeds would decide" if enough else ""
    cells = [
        comparison.name,
        ", ".join(f"{name} {value}" for name, value in cell.options),
        str(cell.learners),
        str(cell.steps),
        f"{answer.lr[0]:.3g}",
        _mean(answer.losses),
        comparison.against,
        f"{answer.lr[1]:.3g}",
        _mean(answer.reference),
        str(found or "-"),
        str(comparison.question) if comparison.counts else "(for contrast)",
        said,
    ]
    return f"| {' | '.join(cells)} |"


def _mean(losses: list[float | None]) -> str:
    known = [loss for loss in losses if loss is not None]
    text = f"{mean(known):.4f}" if known else ""
    diverged = len(losses) - len(known)
    return f"{text} ({diverged} diverged)".strip() if diverged else text
