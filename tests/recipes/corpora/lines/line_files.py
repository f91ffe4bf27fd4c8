"""Small images and directories of text lines, for the tests."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from espnet_distopt.recipes.commands.preparing import prepare_lines_command as main
from espnet_distopt.recipes.corpora.lines.images import Gray
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from tests.refusal import error_of


def bars(width: int = 60, height: int = 20) -> Gray:
    """Paper (230) with a black bar (20), 3 pixels wide, every 10 columns."""
    image = np.full((height, width), 230, np.uint8)
    for start in range(5, width - 3, 10):
        image[4 : height - 4, start : start + 3] = 20
    return image


def save(path: Path, image: Gray | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(bars() if image is None else image).save(path)
    return path


def write_page(path: Path, lines: dict[str, Gray]) -> None:
    """Write a page in PAGE XML, and beside it its image with the lines of its texts."""
    height = 8 + sum(len(line) + 8 for line in lines.values())
    width = 8 + max(line.shape[1] for line in lines.values())
    image, elements, top = np.full((height, width), 255, np.uint8), [], 8
    for number, (text, line) in enumerate(lines.items()):
        bottom, right = top + len(line), 4 + line.shape[1]
        image[top:bottom, 4:right] = line
        corners = f"4,{top} {right - 1},{top} {right - 1},{bottom - 1} 4,{bottom - 1}"
        elements.append(
            f'<TextLine id="l{number}"><Coords points="{corners}"/>'
            f"<TextEquiv><Unicode>{text}</Unicode></TextEquiv></TextLine>"
        )
        top = bottom + 8
    save(path.with_suffix(".png"), image)
    path.write_text(
        f'<PcGts><Page imageFilename="{path.stem}.png" imageWidth="{width}" '
        f'imageHeight="{height}">{"".join(elements)}</Page></PcGts>'
    )


def data_dir(path: Path, texts: dict[str, str]) -> Path:
    """Write a data directory with an image of bars for each id; the writer is `ann`."""
    images = {key: str(save(path / "png" / f"{key}.png")) for key in texts}
    LineDir(images=images, text=texts, utt2spk=dict.fromkeys(texts, "ann")).write(
        path / "data"
    )
    return path / "data"


def refuses(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prepare_lines` refuses what is in `own`, and writes nothing beside it."""
    options = [*options, "--out", str(tmp_path / "data")]
    assert message in error_of(main, options, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
