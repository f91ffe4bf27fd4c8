"""Token lists: ESPnet's form, and every token of the text is in the list."""

from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.formatting import make_tokens_command as main
from espnet_distopt.recipes.corpora.kaldi.tokens import (
    by_count,
    characters,
    make_tokens,
    read_characters,
)
from tests.refusal import error_of

SENTENCES = [
    "the cat sat on the mat",
    "the other cat thought that the mat was there",
    "théâtre",
    "",
    "<unk> there",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    lines = [f"ann-{n} {words}\n" for n, words in enumerate(SENTENCES)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_words(text: Path, tmp_path: Path) -> None:
    tokens = make_tokens(text, tmp_path / "out", "word")
    words = ["the", "cat", "mat", "there", "on", "other", "sat", "that", "thought"]
    assert tokens == ["<blank>", "<unk>", *words, "théâtre", "was", "<sos/eos>"]
    assert (tmp_path / "out" / "tokens.txt").read_text("utf-8").split("\n") == [
        *tokens,
        "",
    ]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tokens.txt"]


def test_chars(text: Path, tmp_path: Path) -> None:
    tokens = make_tokens(text, tmp_path / "out", "char")
    assert tokens[:2] == ["<blank>", "<unk>"]
    assert tokens[-1] == "<sos/eos>"
    chars = set("".join(SENTENCES)) - {" "} | {"<space>"}
    assert sorted(tokens[2:-1]) == sorted(chars)


@pytest.mark.parametrize("token_type", ["word", "char", "bpe"])
def test_espnet_finds_every_token(token_type: str, text: Path, tmp_path: Path) -> None:
    char = pytest.importorskip("espnet2.text.char_tokenizer")
    word = pytest.importorskip("espnet2.text.word_tokenizer")
    bpe = pytest.importorskip("espnet2.text.sentencepiece_tokenizer")
    converter = pytest.importorskip("espnet2.text.token_id_converter")
    out = tmp_path / "out"
    make_tokens(text, out, token_type, nbpe=26)
    tokenizer = {
        "word": lambda: word.WordTokenizer(),
        "char": lambda: char.CharTokenizer(),
        "bpe": lambda: bpe.SentencepiecesTokenizer(out / "bpe.model"),
    }[token_type]()
    ids = converter.TokenIDConverter(out / "tokens.txt")
    for sentence in SENTENCES[:3]:
        tokens = tokenizer.text2tokens(sentence)
        assert 1 not in ids.tokens2ids(tokens)  # 1 is <unk>
        assert tokenizer.tokens2text(ids.ids2tokens(ids.tokens2ids(tokens))) == sentence


def test_bpe_has_the_asked_length_and_is_repeatable(text: Path, tmp_path: Path) -> None:
    first = make_tokens(text, tmp_path / "one", "bpe", nbpe=26)
    again = make_tokens(text, tmp_path / "two", "bpe", nbpe=26)
    assert len(first) == len(set(first)) == 26
    assert first == again
    models = [(tmp_path / name / "bpe.model").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1]


def test_bpe_reads_long_lines(tmp_path: Path) -> None:
    # sentencepiece leaves out lines above 4192 bytes unless told otherwise
    lines = f"ann-1 {'one two ' * 1000}three\nann-2 zero one two\n"
    (tmp_path / "text").write_text(lines)
    tokens = make_tokens(tmp_path / "text", tmp_path / "out", "bpe", nbpe=14)
    assert "h" in "".join(tokens[2:-1])


def test_ties_are_in_alphabet_order() -> None:
    assert by_count("baccéba") == ["a", "b", "c", "é"]
    assert by_count("ccba") == ["c", "a", "b"]


BAD = [
    ("", "word", 100, "text: empty"),
    ("ann-1\nann-2\n", "word", 100, "no utterance has words"),
    ("ann-1 a <blank>\n", "word", 100, "contains <blank>"),
    ("ann-1 <sos/eos>\n", "char", 100, "contains <sos/eos>"),
    ("ann-2 a\nann-1 b\n", "char", 100, "text:2: ann-1 must come before"),
    ("ann-1 one two three\n", "bpe", 1000, "too few subwords, at most"),
    ("ann-1 one two three\n", "bpe", 5, "too many characters, at least"),
    ("ann-1 one two three\n", "bpe", 0, "--nbpe 0: expected the length"),
]


@pytest.mark.parametrize(("content", "token_type", "nbpe", "message"), BAD)
def test_bad_input_is_one_line(
    content: str,
    token_type: str,
    nbpe: int,
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text").write_text(content)
    out = tmp_path / "out"
    options = ["--text", str(tmp_path / "text"), "--out", str(out)]
    options += ["--type", token_type, "--nbpe", str(nbpe)]
    assert message in error_of(main, options, capfd)
    assert not out.exists()


def test_command(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--type", "word", "--text", str(text), "--out", str(tmp_path / "a" / "b")])
    assert "14 tokens of type word" in capsys.readouterr().out
    assert (tmp_path / "a" / "b" / "tokens.txt").exists()


def test_characters_of_a_list_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a-1 ab a\na-2 <b\n")
    made = make_tokens(tmp_path / "text", tmp_path / "list", "char")
    known = read_characters(tmp_path / "list" / "tokens.txt")
    assert known == made[1:-1]
    assert characters(" a  bz<", known) == ["a", "<space>", "b", "<unk>", "<"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "tokens.txt: empty"),
        ("<blank>\na\n", "no token list: expected <blank> first and <sos/eos> last"),
        ("a\n<sos/eos>\n", "no token list"),
        ("<blank>\na\nab\n<sos/eos>\n", ":3: 'ab' is no single character"),
    ],
)
def test_a_list_of_no_characters(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text(content)
    with pytest.raises(InputError) as caught:
        read_characters(tmp_path / "tokens.txt")
    assert message in str(caught.value)
