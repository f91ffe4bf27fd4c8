"""Every claim can be computed, and the page shows what its cells say."""

from pathlib import Path

import claims as command
import pytest
import report
from convergence import claims
from convergence.claim import CHOOSING_SEED

from espnet_distopt.algorithms import check

FOUND = claims.load()
RESULTS = report.ROOT / "benchmarks" / "results" / "claims"


@pytest.mark.parametrize("name", FOUND)
def test_the_cells_of_a_claim_can_be_trained(name: str) -> None:
    claim = FOUND[name]
    assert claim.text.endswith(".") and claim.setting.endswith(".")
    assert any(comparison.counts for comparison in claim.comparisons)
    assert CHOOSING_SEED not in claim.seeds
    for cell in claim.cells(lambda _: None):
        check(cell.algorithm, dict(cell.options), cell.learners)
        assert cell.steps * cell.learners * cell.batch == cell.samples


def test_the_page_is_what_the_results_say() -> None:
    """`claims.py --budget-minutes 0` writes it anew."""
    page = (report.ROOT / "docs" / "claims.md").read_text()
    assert page == command.page(FOUND, RESULTS)


def test_without_a_budget_the_command_only_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["claims.py", "--budget-minutes", "0", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    command.main()
    page = (tmp_path / "claims.md").read_text()
    assert page.count("not yet measured: 0 of") >= 2 * len(FOUND)
    assert not (tmp_path / "claims").exists()


def test_an_unknown_claim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parser(list(FOUND)).parse_args(["--only", "nothing"])
    assert "no_loss_adam" in capsys.readouterr().err
