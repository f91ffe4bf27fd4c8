"""Alignments in files: counts, priors, and malformed ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table, write_table
from espnet_distopt.recipes.commands.language import import_alignments_command as main
from espnet_distopt.recipes.hmm.alignments import (
    PdfCounts,
    checked,
    fit,
    log_priors,
    read_kaldi_alignments,
    read_numbers,
    read_transition_pdfs,
    write_alignments,
    write_numbers,
)
from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask
from tests.recipes.hmm.kaldi_files import (
    archive,
    model,
    transition_ids,
    write_directory,
)
from tests.recipes.hmm.toy import read_alignments
from tests.recipes.models.hybrid.toy import arguments, write_toy_frames
from tests.refusal import Refused, error_of


def test_an_alignment_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = {"b": np.array([0, 0, 1], np.int32), "a": np.array([2, 1], np.int32)}
    write_alignments(tmp_path, tmp_path, written, 3)
    again = read_alignments(tmp_path / "ali.scp")
    assert list(again) == ["a", "b"]
    assert all(again[name].tolist() == written[name].tolist() for name in written)
    assert read_numbers(tmp_path / "counts", 3).tolist() == [2, 2, 1]


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
def test_a_vector_that_is_no_alignment(vector: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=f"x.ark: {message}"):
        checked(vector, 3, "x.ark")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3", "expected numbers between"),
        ("[ 1 two 3 ]", "expected numbers between"),
        ("[ 1 2 ]", "2 numbers for 3 pdfs"),
        ("[ 1 2 -3 ]", "not negative"),
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


# Alignments of a Kaldi directory are read and train the same, or are refused.

TIED = [0, 1, 1, 2, 3, 0]
"""The pdfs of the states; a tree ties some of them."""


def test_the_pdf_of_each_transition(tmp_path: Path) -> None:
    path = tmp_path / "final.mdl"
    path.write_bytes(model(TIED))
    expected = [pdf for pdf in TIED for _ in range(2)]
    assert read_transition_pdfs(path).tolist() == [-1, *expected]
    path.write_bytes(model(TIED, chain=True))
    expected = [p for pdf in TIED for p in (pdf + 10, pdf)]
    assert read_transition_pdfs(path).tolist() == [-1, *expected]


def test_a_directory_of_several_jobs(tmp_path: Path) -> None:
    paths = {"a": [0, 0, 1, 2, 3, 4, 5], "b": [3, 3, 3, 4, 5]}
    jobs = [{name: transition_ids(states)} for name, states in paths.items()]
    write_directory(tmp_path / "ali", TIED, jobs)
    pdfs, found = read_kaldi_alignments(tmp_path / "ali")
    assert pdfs == 4
    read = {name: each.tolist() for name, each in found}
    assert read == {name: [TIED[s] for s in path] for name, path in paths.items()}
    # Archives need not be compressed.
    (tmp_path / "ali/ali.1.gz").unlink()
    (tmp_path / "ali/ali.1").write_bytes(archive(jobs[0]))
    again = {
        name: each.tolist() for name, each in read_kaldi_alignments(tmp_path / "ali")[1]
    }
    assert again == read


def test_frames_that_kaldi_leaves_out() -> None:
    pdfs = np.array([5, 6, 7], np.int32)
    assert fit(pdfs, 3) is not None
    padded = fit(pdfs, 5)
    assert padded is not None
    assert padded.tolist() == [5, 5, 6, 7, 7]
    assert fit(pdfs, 2) is None
    assert fit(pdfs, 7) is None


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Return toy data for a training, and their alignments as Kaldi's directory."""
    write_toy_frames(tmp_path)
    jobs = []
    for name in ("train", "valid"):
        own = read_alignments(tmp_path / name / "ali.scp")
        jobs.append({key: transition_ids(pdfs.tolist()) for key, pdfs in own.items()})
        hybrid = tmp_path / name / "hybrid"
        hybrid.mkdir()
        write_table(hybrid / "utt2num_frames", {key: len(p) for key, p in own.items()})
    write_directory(tmp_path / "kaldi", range(6), jobs)
    return tmp_path


def imported(root: Path) -> list[str]:
    sets = [f"--data={name}={root / name}" for name in ("train", "valid")]
    return ["--ali", str(root / "kaldi"), *sets, "--out", str(root / "imported")]


def test_imported_alignments_train_the_same(toy: Path) -> None:
    main(imported(toy))
    for name in ("train", "valid"):
        for file in ("counts", "stay", "utt2num_frames"):
            own, kaldi = toy / name / file, toy / "imported" / name / file
            assert own.read_text() == kaldi.read_text()
    options = arguments(toy, toy / "own", "--max_epoch", "1")
    DistoptHybridTask.main(cmd=options)
    swapped = [
        option.replace(f"{toy}/{name}/ali", f"{toy}/imported/{name}/ali")
        for option in arguments(toy, toy / "other", "--max_epoch", "1")
        for name in ["train" if "/train/" in option else "valid"]
    ]
    assert swapped != arguments(toy, toy / "other", "--max_epoch", "1")
    swapped += ["--token_list", f"{toy}/imported/train/states.txt"]
    DistoptHybridTask.main(cmd=swapped)
    own, other = (torch.load(toy / name / "1epoch.pth") for name in ("own", "other"))
    assert all(torch.equal(own[key], other[key]) for key in own)


def test_utterances_that_kaldi_has_not_aligned_are_left_out(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hybrid = toy / "valid/hybrid/utt2num_frames"
    write_table(hybrid, {**read_table(hybrid, str), "z": 9})
    main(imported(toy))
    assert "valid: 4 of 5 utterances, 6 pdfs" in capsys.readouterr().out


def test_few_alignments_of_another_length_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = {f"s-{number:02d}": 3 for number in range(100)}
    job = {name: transition_ids([0, 1, 2]) for name in frames}
    write_directory(tmp_path / "kaldi", TIED, [job])
    table, out = tmp_path / "train/hybrid/utt2num_frames", tmp_path / "imported"
    table.parent.mkdir(parents=True)
    cmd = ["--ali", f"{tmp_path}/kaldi", "--data", f"train={tmp_path}/train"]
    cmd += ["--out", str(out)]
    first = f"{tmp_path}/kaldi: s-07 has 3 frames, but its features 9"
    write_table(table, frames | {"s-07": 9})
    main(cmd)
    said = capsys.readouterr().out
    assert f"left out: 1 of 100 alignments of train, the first: {first}" in said
    assert "train: 99 of 100 utterances, 4 pdfs" in said
    for file in ("ali.scp", "utt2num_frames"):
        kept = read_table(out / "train" / file, str)
        assert kept.keys() == frames.keys() - {"s-07"}

    write_table(table, frames | {"s-07": 9, "s-70": 9})
    error = error_of(main, cmd, capsys)
    assert error.startswith(first)
    assert "2 of 100 alignments of train are bad, more than 1 %" in error


BROKEN = [
    ("final.mdl", None, "final.mdl: no such file"),
    ("final.mdl", b"<TransitionModel> text", "not a model in Kaldi's binary form"),
    ("final.mdl", b"\0B<Nnet3> ", "expected <TransitionModel>, got '<Nnet3>'"),
    ("final.mdl", model(TIED)[:60], "no whole transition model: it ends too early"),
    (
        "final.mdl",
        model(TIED).replace(b"<Triples>", b"<Doubles>"),
        "expected <Triples>",
    ),
    ("final.mdl", model([0, 1, -5, 0, 1, 2]), "no state of phone 1 with pdf -5"),
    ("ali.1.gz", b"\x1f\x8b\x08 damaged", "ali.1.gz: not a whole gzip file"),
    ("ali.1", archive({"s-train-00": [1, 2, 99]}), "s-train-00: 99 is no pdf"),
    ("ali.1", archive({"s-train-00": [0, 1]}), "s-train-00: 0 is no transition-id"),
    ("ali.1", archive({"s-train-00": [1, 1, 1]}), "s-train-00 has 3 frames, but its"),
    ("ali.1", archive({"s-train-00": [1, 1, 1]})[:-5], "ali.1: no whole alignments"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_a_broken_directory_leaves_nothing(
    toy: Path, name: str, content: bytes | None, message: str, refused: Refused
) -> None:
    path = toy / "kaldi" / name
    if name.startswith("ali"):
        (toy / "kaldi/ali.1.gz").unlink()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert message in refused(main, imported(toy))
    assert not (toy / "imported").exists()


def test_a_directory_without_alignments(tmp_path: Path) -> None:
    write_directory(tmp_path / "ali", TIED, [])
    with pytest.raises(InputError, match="no alignments"):
        read_kaldi_alignments(tmp_path / "ali")
