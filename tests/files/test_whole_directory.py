import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory


def write(path, content):
    with whole_directory(path, marker="mark") as directory:
        (directory / "mark").write_text(content)
        (directory / content).touch()


def test_new_and_replaced(tmp_path):
    path = tmp_path / "sub" / "corpus"
    for content in ("first", "second"):
        write(path, content)
        assert sorted(p.name for p in path.iterdir()) == sorted(["mark", content])
    assert [p.name for p in path.parent.iterdir()] == ["corpus"]


def test_a_failure_changes_nothing(tmp_path):
    path = tmp_path / "corpus"
    write(path, "first")
    with pytest.raises(KeyboardInterrupt), whole_directory(path, "mark") as new:
        (new / "half").touch()
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["corpus"]
    assert (path / "first").exists()


def test_what_is_not_ours_stays(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(InputError, match="not empty and has no mark"):
        write(tmp_path / "thesis", "x")
    with pytest.raises(InputError, match="is a file"):
        write(tmp_path / "thesis" / "chapter", "x")
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["chapter"]
