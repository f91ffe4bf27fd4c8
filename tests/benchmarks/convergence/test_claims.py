"""Every claim can be computed, and the page shows what its cells say."""

import math
import re
from pathlib import Path

import claims as command
import pytest
import report
from convergence.claim import CHOOSING_SEED
from convergence.sweep import Result, Sweep
from convergence.table import CLAIMS
from convergence.training import Training
from laboratory import run

from espnet_distopt.algorithms import check

RESULTS = report.ROOT / "benchmarks" / "results" / command.RESULTS


@pytest.mark.parametrize("name", CLAIMS)
def test_the_cells_of_a_claim_can_be_trained(name: str) -> None:
    claim = CLAIMS[name]
    assert claim.text.endswith(".") and claim.note[-1:] in ("", ".")
    assert CHOOSING_SEED not in claim.seeds
    assert len(claim.seeds) >= 5
    trained: set[Training] = set()

    def result(cell: Training) -> Result:
        """Return a loss that has a minimum, and grows with the batch."""
        trained.add(cell)
        size = cell.learners * cell.batch
        loss = 1 + math.log(cell.lr / 0.01) ** 2 / 100 + size / 4000 + cell.seed / 1e6
        return {"held_out": loss}

    assert claim.is_complete(result)
    assert any(each.counts for each in claim.asked(result))
    for cell in trained:
        check(cell.algorithm, dict(cell.options), cell.learners)
        assert cell.steps * cell.learners * cell.batch == cell.samples
        assert cell.steps >= 30


def test_the_pages_are_what_the_results_say() -> None:
    """`claims.py --budget-minutes 0` writes them anew."""
    results = Sweep(RESULTS, run.compute, 1, run.together)
    for name, text in command.pages(CLAIMS, results).items():
        assert (report.ROOT / "docs" / name).read_text() == text


def test_figures_of_claims_in_other_pages_are_those_of_the_claims() -> None:
    docs = report.ROOT / "docs"
    details = (docs / "claims_in_detail.md").read_text()
    sections = dict(part.split("\n", 1) for part in details.split("\n## ")[1:])
    shown = re.compile(r"\[([^\]]*\d[^\]]*)\]\([^)]*claims_in_detail\.md#(\w+)\)")
    found = 0
    for page in sorted(docs.rglob("*.md")):
        if page.name == "claims.md":
            continue
        for figure, name in shown.findall(page.read_text()):
            if "%" in figure:
                found += 1
                assert figure.replace("\n", " ") in sections[name], (page, name)
    assert found > 20


def test_every_result_is_of_a_commit() -> None:
    lines = RESULTS.read_text().splitlines()
    assert lines and not [line for line in lines if '-dirty"' in line]


def test_without_a_budget_the_command_only_writes_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["claims.py", "--budget-minutes", "0", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    command.main()
    for name in ("claims.md", "claims_in_detail.md"):
        text = (tmp_path / name).read_text()
        assert text.count("not yet measured: 0 of") >= len(CLAIMS)
    assert not (tmp_path / command.RESULTS).exists()


def test_an_unknown_claim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parser(list(CLAIMS)).parse_args(["--only", "nothing"])
    assert "no_loss_adam" in capsys.readouterr().err
