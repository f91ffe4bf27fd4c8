"""No command removes or overwrites a file that it is going to read."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from espnet_distopt.recipes.commands import decoding, scoring
from espnet_distopt.recipes.commands.decoding import ocr_inference_command

Main = Callable[[Sequence[str]], None]
COMMANDS: dict[str, tuple[Main, str, str]] = {
    "score": (scoring.score_command, "--ref x --hyp d/hyp.trn --out d", "hyp.trn"),
    "score_lines": (
        scoring.score_lines_command,
        "--ref x --hyp d/score_cer/result.txt --out d",
        "score_cer/result.txt",
    ),
    "score_hub5": (
        scoring.score_hub5_command,
        "--stm x --glm x --ctm d/hyp.ctm --out d",
        "hyp.ctm",
    ),
    "error_sheet": (
        scoring.error_sheet_command,
        "--data x --ref x --hyp d/hyp.txt --out d/hyp.txt",
        "hyp.txt",
    ),
    "ctc_align": (
        decoding.ctc_align_command,
        "--exp x --model x --data x --dump x --text d/text --out d/text",
        "text",
    ),
    "ctc_inference": (
        decoding.ctc_inference_command,
        "--exp x --model x --data d --out d",
        "text",
    ),
    "hybrid_inference": (
        decoding.hybrid_inference_command,
        "--gmm x --lang x --data x --places d --out d",
        "text",
    ),
    "ocr_inference": (ocr_inference_command, "--exp x --data d --out d", "text"),
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
