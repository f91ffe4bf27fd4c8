"""The comparison of options of text lines: its results, its searches and its table."""

from pathlib import Path
from typing import Any

import pytest
from lines import methods, runs
from text_lines import Results, table


def result(loss: float, rate: float) -> dict[str, Any]:
    cer = dict.fromkeys(("known", "unseen", "digits", "all"), rate)
    return {"valid_losses": [9.0, loss], "cer": cer}


def test_the_table_has_paired_differences() -> None:
    rates = {"reference": (4.0, 5.0, 9.0), "shortcut": (3.0, 5.0, 7.0)}
    figures = {
        name: {seed: result(1.5, rate) for seed, rate in enumerate(row)}
        for name, row in rates.items()
    }
    *_, first, second = table(figures)
    assert first == "| reference | 3 | 1.50 | 6.00 | 6.00 | 6.00 | 6.00 |"
    assert second.startswith(
        "| shortcut | 3 | 1.50 [+0.00 (+0.00 to +0.00)] | 5.00 [-1.00 ("
    )
    assert "-1.00 (-3.48 to +1.48)" in second  # t is 4.303, the deviation 1


def test_a_result_is_found_again_with_the_same_settings_only(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    reference, *others = methods.METHODS
    Results(path).add(reference, 0, result(1.0, 2.0))
    with path.open("a") as file:
        file.write('{"key": "cut sho')
    again = Results(path)
    again.read()
    assert (reference, 0) in again and (reference, 1) not in again
    assert not any((method, 0) in again for method in others)
    assert again[reference, 0]["valid_losses"] == [9.0, 1.0]


def test_the_scales_are_those_with_the_fewest_errors_on_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = methods.SCALES["ngram_beam"][2]

    def errors(folder: Path, data: Path, out: Path, *options: str) -> dict[str, float]:
        assert data.name == "dev"
        text = Path(options[1]).read_text()
        assert "search: ngram_beam\n" in text
        weight, penalty = best
        found = f"lm_weight: {weight}\npenalty: {penalty}\n" in text
        return {"all": 1.0 if found else 2.0}

    monkeypatch.setattr(runs, "errors", errors)
    monkeypatch.setattr(runs, "step", lambda *arguments: None)
    assert runs.chosen_scales("ngram_beam", tmp_path, tmp_path) == best
    assert runs.chosen_scales("greedy", tmp_path, tmp_path) == (0.0, 0.0)
