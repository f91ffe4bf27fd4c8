"""Alignments in files: counts, priors, and malformed ones."""

from pathlib import Path

import kaldiio
import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.alignments import (
    PdfCounts,
    log_priors,
    read_alignments,
    read_numbers,
    read_pdfs,
    write_alignments,
    write_numbers,
)


def test_an_alignment_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = {
        "b": np.array([0, 0, 1], np.int32),
        "a": np.array([2, 1], np.int32),
    }
    write_alignments(tmp_path, tmp_path, written, 3)
    again = dict(read_alignments(tmp_path / "ali.scp", 3))
    assert list(again) == ["a", "b"]
    assert all(again[name].tolist() == written[name].tolist() for name in written)
    assert read_numbers(tmp_path / "counts", 3).tolist() == [2, 2, 1]
    # Kaldi's library reads the same.
    assert kaldiio.load_scp(str(tmp_path / "ali.scp"))["b"].tolist() == [0, 0, 1]


def test_counts_and_the_probability_of_staying() -> None:
    counts = PdfCounts.of([np.array([0, 0, 0, 1], np.int32)], 3)
    assert counts.frames.tolist() == [3, 1, 0]
    assert counts.visits.tolist() == [1, 1, 0]
    assert counts.stay().tolist() == [2.5 / 4, 0.5 / 2, 0.5]


def test_priors_of_a_pdf_that_was_never_seen() -> None:
    assert np.exp(log_priors(np.array([6, 0, 3]))).tolist() == pytest.approx(
        [0.6, 0.1, 0.3]
    )


ARKS = [
    (np.array([0, 3], np.int32), "3 is no pdf: there are 3, from 0"),
    (np.array([-1, 0], np.int32), "-1 is no pdf"),
    (np.array([0.0, 1.0], np.float32), "expected a vector of integers"),
    (np.zeros((2, 2), np.float32), "expected a vector of integers"),
]


@pytest.mark.parametrize(("vector", "message"), ARKS)
def test_a_vector_that_is_no_alignment(
    tmp_path: Path, vector: np.ndarray, message: str
) -> None:
    ark, scp = tmp_path / "x.ark", tmp_path / "x.scp"
    kaldiio.save_ark(str(ark), {"a": vector}, scp=str(scp))
    with pytest.raises(InputError, match=message):
        dict(read_alignments(scp, 3))


def test_an_ark_that_is_cut_short_or_missing(tmp_path: Path) -> None:
    ark = tmp_path / "x.ark"
    kaldiio.save_ark(str(ark), {"a": np.arange(50, dtype=np.int32)})
    ark.write_bytes(ark.read_bytes()[:-9])
    with pytest.raises(InputError, match="no whole alignment"):
        read_pdfs(f"{ark}:2", 50)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_pdfs(f"{tmp_path}/none.ark:2", 50)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3", "expected numbers between"),
        ("[ 1 two 3 ]", "expected numbers between"),
        ("[ 1 2 ]", "2 numbers for 3 pdfs"),
        ("[ 1 2 -3 ]", "not negative"),
        ("[ 1 2 inf ]", "finite"),
        ("", "empty"),
    ],
)
def test_malformed_numbers(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "counts"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_numbers(path, 3)


def test_numbers_as_kaldi_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    write_numbers(path, [1, 2.5, 3])
    assert path.read_text(encoding="utf-8") == " [ 1 2.5 3 ]\n"
