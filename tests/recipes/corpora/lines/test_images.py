"""Images of every kind give the same grey levels, and lines the same ink."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.lines.images import (
    UnfitLine,
    columns,
    line_features,
    read_image,
)
from tests.recipes.corpora.lines.line_files import bars, save


def rgba(image: np.ndarray) -> Image.Image:
    """Black ink on nothing, as drawing programs save it."""
    black = np.zeros((*image.shape, 4), np.uint8)
    black[..., 3] = 255 - image
    return Image.fromarray(black)


def turned(image: np.ndarray, path: Path) -> None:
    """As a camera held sideways saves it."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(np.rot90(image).copy()).save(path, exif=exif)


def phone(image: np.ndarray, path: Path) -> None:
    """As phones save a photo and a second view of it in one JPEG."""
    photo = Image.fromarray(image).convert("RGB")
    more = [photo.resize((8, 4))]
    photo.save(path, format="MPO", save_all=True, append_images=more, quality=100)


KINDS: dict[str, Callable[[np.ndarray, Path], None]] = {
    "gray.png": lambda image, path: Image.fromarray(image).save(path),
    "rgb.bmp": lambda image, path: Image.fromarray(image).convert("RGB").save(path),
    "alpha.png": lambda image, path: rgba(image).save(path),
    "gray_alpha.png": lambda image, path: rgba(image).convert("LA").save(path),
    "palette.gif": lambda image, path: Image.fromarray(image).convert("P").save(path),
    "16_bits.png": lambda image, path: Image.fromarray(
        image.astype(np.uint16) * 257
    ).save(path),
    "16_bits.tif": lambda image, path: Image.fromarray(
        image.astype(np.uint16) * 257
    ).save(path),
    "8_bits_in_16.png": lambda image, path: Image.fromarray(
        image.astype(np.uint16)
    ).save(path),
    "8_bits_in_32.tif": lambda image, path: Image.fromarray(
        image.astype(np.int32)
    ).save(path),
    "12_bits.tif": lambda image, path: Image.fromarray(
        image.astype(np.uint16) * 16
    ).save(path),
    "phone.jpg": phone,
    "cmyk.tif": lambda image, path: Image.fromarray(image).convert("CMYK").save(path),
    "cmyk.jpg": lambda image, path: (
        Image.fromarray(image).convert("CMYK").save(path, quality=100)
    ),
    "lab.tif": lambda image, path: Image.merge(
        "LAB", [Image.fromarray(image)] + [Image.new("L", image.shape[::-1], 128)] * 2
    ).save(path),
    "lossless.webp": lambda image, path: Image.fromarray(image).save(
        path, lossless=True
    ),
    "lossless.jp2": lambda image, path: Image.fromarray(image).save(path),
    "plain.pgm": lambda image, path: Image.fromarray(image).save(path),
    "turned.png": turned,
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_images(name: str, tmp_path: Path) -> None:
    image = bars(61, 20)
    KINDS[name](image, tmp_path / name)
    found = read_image(tmp_path / name)
    assert (found.shape, found.dtype) == ((20, 61), np.uint8)
    assert np.abs(found.astype(int) - image).max() <= 3


def test_one_bit(tmp_path: Path) -> None:
    image = np.where(bars() > 128, 255, 0).astype(np.uint8)
    Image.fromarray(image).convert("1").save(tmp_path / "fax.tif")
    assert np.array_equal(read_image(tmp_path / "fax.tif"), image)


def test_transparent_palette(tmp_path: Path) -> None:
    """What is transparent is paper, whatever its colour in the palette."""
    image = Image.fromarray((bars() < 128).astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 10, 10, 10])
    image.save(tmp_path / "ink.png", transparency=0)
    found = read_image(tmp_path / "ink.png")
    assert set(np.unique(found)) == {10, 255}


def _pages(path: Path) -> None:
    page = Image.fromarray(bars())
    page.save(path, save_all=True, append_images=[page])


def _cut_off(path: Path) -> None:
    save(path, np.random.default_rng(0).integers(0, 255, (99, 99)).astype(np.uint8))
    path.write_bytes(path.read_bytes()[:3000])


BAD_IMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.png": (lambda path: None, "no such file"),
    "empty.png": (lambda path: path.touch(), "empty, expected an image"),
    "text.png": (lambda path: path.write_text("hello"), "no image, or of none of"),
    "drawing.eps": (
        lambda path: Image.fromarray(bars()).save(path),
        "no image, or of none of",
    ),
    "cut_off.png": (_cut_off, "cannot be read: image file is truncated"),
    "no_pixels.pgm": (
        lambda path: path.write_bytes(b"P5 0 20 255\n"),
        "no_pixels.pgm: ",
    ),
    "absurd.pgm": (lambda path: path.write_bytes(b"P5 400000 400000 255\n"), "pixels"),
    "too_large.pgm": (
        lambda path: path.write_bytes(b"P5 16000 10000 255\n"),
        "16000 x 10000 pixels, expected at most 150,000,000",
    ),
    "pages.tif": (_pages, "several pages or frames, expected one"),
    "32_bits.tif": (
        lambda path: Image.fromarray(bars().astype(np.float32)).save(path),
        "32 bits a pixel, expected 8 or 16",
    ),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_images(name: str, tmp_path: Path) -> None:
    make, message = BAD_IMAGES[name]
    make(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read_image(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_features_are_columns_of_ink() -> None:
    ink = line_features(bars(60, 20), 20)
    assert (ink.shape, ink.dtype) == ((60, 20), np.float32)
    assert ink.flags.c_contiguous
    expected = (bars(60, 20) < 128).T
    assert np.array_equal(ink > 0.5, expected)
    assert ink[expected].min() == 1 and ink[~expected].max() == 0


@pytest.mark.parametrize(
    ("change", "close"),
    [
        (lambda image: 255 - image, 1e-5),  # white on black
        (lambda image: 100 + image // 3, 0.02),  # pale
        (lambda image: image * np.linspace(0.7, 1, 60), 0.35),  # in a shadow
    ],
    ids=["inverted", "pale", "shadow"],
)
def test_features_do_not_depend_on_paper_and_contrast(
    change: Callable[[np.ndarray], np.ndarray], close: float
) -> None:
    expected = line_features(bars(60, 20), 20)
    found = line_features(change(bars(60, 20)).astype(np.uint8), 20)
    assert np.abs(found - expected).max() <= close


def test_empty_paper_has_no_ink() -> None:
    """A line's contrast is not that of the paper's noise."""
    noise = np.random.default_rng(0).normal(0, 2, (32, 400))
    paper = (200 + noise + np.linspace(0, 40, 400)).astype(np.uint8)
    assert line_features(paper, 32).mean() < 0.1


@given(height=st.integers(1, 90), width=st.integers(1, 300), target=st.integers(1, 64))
def test_features_of_any_size(height: int, width: int, target: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width)).astype(np.uint8)
    count = columns(image, target)
    assert abs(count - width * target / height) <= 0.5
    if 4 <= count <= 16_000:
        ink = line_features(image, target)
        assert ink.shape == (count, target)
        assert np.isfinite(ink).all() and ink.min() >= 0 and ink.max() <= 1
    else:
        with pytest.raises(UnfitLine):
            line_features(image, target)


@pytest.mark.parametrize("rows", [10, 20, 23, 40, 200])
def test_low_lines_keep_their_size_between_paper(rows: int) -> None:
    image = bars(60, rows)
    assert np.array_equal(line_features(image, 20, 0), line_features(image, 20, rows))
    ink = line_features(image, 20, least_rows=40)
    high = max(rows, 40)
    filled = round(20 * rows / high)
    assert ink.shape == (round(60 * 20 / high), 20)
    assert columns(image, 20, least_rows=40) == len(ink)
    above = (20 - filled) // 2
    assert not ink[:, :above].any() and not ink[:, above + filled :].any()
    letters = ink[:, above : above + filled]
    if rows in (10, 20):  # The scale is exactly a half.
        assert np.array_equal(letters, line_features(image, filled))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((32, 1), "too narrow: 1 columns, expected at least 4"),
        ((90, 8), "too narrow: 3 columns, expected at least 4"),
        ((32, 50_000), "too wide: 50000 columns, expected at most 16000"),
        ((1, 50_000), "too wide: 1600000 columns, expected at most 16000"),
    ],
)
def test_unfit(shape: tuple[int, int], message: str) -> None:
    with pytest.raises(UnfitLine, match=message):
        line_features(np.full(shape, 255, np.uint8), 32)


def test_smooth_scaling() -> None:
    """Scaled down by six, thin strokes are paler, not lost."""
    image = np.full((192, 600), 255, np.uint8)
    image[40:150, 100::90] = 0
    image[40:150, 101::90] = 0
    ink = line_features(image, 32).max(axis=1)
    peaks = ndimage.label(ink > 0.3)[1]
    assert peaks == len(range(100, 600, 90))
