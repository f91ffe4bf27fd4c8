"""The command prints the page with the table of what works and what is refused.

python -m tests.uses.table > docs/what_works.md
"""

from tests.uses import models, optimizers, parameters, schedules, steps
from tests.uses.use import COLUMNS, Use

SECTIONS: dict[str, list[type[Use]]] = {
    "Parameters and buffers": parameters.ROWS,
    "The step": steps.ROWS,
    "Optimizers": optimizers.ROWS,
    "Schedulers": schedules.ROWS,
    "Models and sessions": models.ROWS,
}

ROWS = [row for rows in SECTIONS.values() for row in rows]

HEAD = """\
# What works with a session

Each row is something that users do with a model, an optimizer and a
[loop of their own](../README.md#in-a-loop-of-your-own). Each column is an algorithm.

- **yes**: it works as it does without a session. Two learners have trained like this,
  as two processes, and what they did agrees with the algorithm's equations: no update
  is lost, none is counted twice, and gradients are the mean of all samples. One
  learner alone gets the bits of the plain loop.
- **no**: the session refuses it with an `InputError` that says what to do instead. It
  never trains something else.

`tests/uses` runs each cell. `python -m tests.uses.table > docs/what_works.md` writes
this page. `hadpsgd` has one node of several learners here; with one learner on each
node it is `adpsgd`. `bmuf` and `slowmo` have their default options (`moments: average`
and `reset`), and `adasum` combines updates, not gradients. `adpsgd`, `hadpsgd`,
`dpsgd`, `d1d_model` and `local_sgd` correct the second moment of Adam, AdamW, NAdam and
RAdam (`second_moment: consistent`); any other optimizer but SGD is named in a warning,
and trained as it is.

Buffers and frozen parameters begin as learner 0 has them, with every algorithm. The
running statistics of BatchNorm are averaged at each consensus. Any other buffer that
the forward pass changes, such as a codebook or a counter, stays each learner's own, and
a checkpoint has learner 0's.
"""


def page() -> str:
    """Return the page, in Markdown."""
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        names = " | ".join(f"`{name}`" for name in COLUMNS)
        head = f"| | {names} | |\n|{'---|' * (len(COLUMNS) + 2)}"
        lines = "\n".join(map(_line, rows))
        parts.append(f"## {title}\n\n{head}\n{lines}\n")
    return "\n".join(parts)


def _line(row: type[Use]) -> str:
    cells = ["no" if name in row.refused else "yes" for name in COLUMNS]
    return f"| {row.title} | {' | '.join(cells)} | {row.note} |"


if __name__ == "__main__":
    print(page(), end="")
