"""No command removes or overwrites a file that it is going to read."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from espnet_distopt.bin import (
    ctc_align,
    ctc_inference,
    error_sheet,
    hybrid_inference,
    ocr_inference,
    score,
    score_hub5,
    score_lines,
)

Main = Callable[[Sequence[str]], None]
COMMANDS: dict[str, tuple[Main, str, str]] = {
    "score": (score.main, "--ref x --hyp d/hyp.trn --out d", "hyp.trn"),
    "score_lines": (
        score_lines.main,
        "--ref x --hyp d/score_cer/result.txt --out d",
        "score_cer/result.txt",
    ),
    "score_hub5": (
        score_hub5.main,
        "--stm x --glm x --ctm d/hyp.ctm --out d",
        "hyp.ctm",
    ),
    "error_sheet": (
        error_sheet.main,
        "--data x --ref x --hyp d/hyp.txt --out d/hyp.txt",
        "hyp.txt",
    ),
    "ctc_align": (
        ctc_align.main,
        "--exp x --model x --data x --dump x --text d/text --out d/text",
        "text",
    ),
    "ctc_inference": (
        ctc_inference.main,
        "--exp x --model x --data d --out d",
        "text",
    ),
    "hybrid_inference": (
        hybrid_inference.main,
        "--gmm x --lang x --data x --places d --out d",
        "text",
    ),
    "ocr_inference": (ocr_inference.main, "--exp x --data d --out d", "text"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_is_not_overwritten(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    main, arguments, file = COMMANDS[name]
    given = Path("d", file)
    given.parent.mkdir(parents=True)
    given.write_text("mine")
    with pytest.raises(SystemExit):
        main(arguments.split())
    said = capsys.readouterr().err
    assert (
        said
        == f"error: {given}: an input that would be overwritten: name another --out\n"
    )
    assert given.read_text() == "mine"
