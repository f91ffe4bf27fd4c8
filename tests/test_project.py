"""The files that a forge and its visitors look for agree with each other."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = [*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"]


def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_all_name_one_version_and_one_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    ours = metadata()["metadata"]
    assert cited["version"] == ours["version"]
    assert cited["license"] == ours["license"]
    assert cited["title"] == ours["name"]
    assert cited["authors"] == [{"name": ours["author"]}]


def test_the_change_log_is_in_order() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    form = r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}"
    assert all(re.fullmatch(form, head) for head in heads[1:])


@pytest.mark.parametrize("path", HIDDEN, ids=lambda path: path.name)
def test_the_forges_files_are_yaml(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


def test_the_workflow_runs_the_pythons_of_the_package() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job = workflow["jobs"]["test"]
    classifiers = metadata()["metadata"]["classifiers"]
    said = re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert job["strategy"]["matrix"]["python"] == said
    assert "make test" in [step.get("run") for step in job["steps"]]


def test_the_hooks_are_the_linters_of_make() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = " ".join(hook["entry"] for hook in hooks[0]["hooks"])
    linted = (ROOT / "Makefile").read_text().partition("\nlint:")[2]
    linted = linted.partition("\n\n")[0]
    tools = {"ruff check", "ruff format", "mypy -p", "shellcheck -x"}
    assert all(tool in linted and tool in entries for tool in tools)
