import random
import re

import pytest

from espnet_distopt.recipes.corpora.ldc.ms98 import plain_words
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import (
    SHARED,
    TOPICS,
    Variety,
    expand,
    invent_dialogue,
)


def dialogues(count, turns=66):
    return [
        invent_dialogue(("john", "mary"), turns, random.Random(seed))
        for seed in range(count)
    ]


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 66, 400])
def test_length(turns):
    assert len(dialogues(1, turns)[0]) == turns


def test_less_variety_has_fewer_words_and_topics():
    small = [
        turn.text
        for seed in range(20)
        for turn in invent_dialogue(
            ("john", "mary"), 66, random.Random(seed), Variety(topics=2, alternatives=2)
        )
    ]
    assert {t for t in TOPICS if any(t in text for text in small)} == {
        *list(TOPICS)[:2]
    }
    assert len({word for text in small for word in plain_words(text)}) < 130


def test_each_side_gives_its_own_name():
    for dialogue in dialogues(20):
        for turn in dialogue[:2]:
            own, other = ("john", "mary") if turn.side == "A" else ("mary", "john")
            assert own in turn.text
            assert other not in turn.text
        assert {turn.side for turn in dialogue} == {"A", "B"}


def test_vocabulary_and_utterances_suit_a_small_recogniser():
    texts = [turn.text for dialogue in dialogues(60) for turn in dialogue]
    words = [plain_words(text) for text in texts]
    assert 300 <= len({word for each in words for word in each}) <= 500
    assert all(words)
    assert max(len(each) for each in words) <= 17
    assert 5 < sum(map(len, words)) / len(words) < 9


def test_most_long_sentences_of_a_test_set_are_new():
    texts = [[turn.text for turn in dialogue] for dialogue in dialogues(66)]
    known = {text for dialogue in texts[:60] for text in dialogue}
    test = [text for each in texts[60:] for text in each if len(text.split()) > 3]
    assert sum(text in known for text in test) < 0.35 * len(test)


def test_marks_of_ms98_occur():
    text = " ".join(turn.text for dialogue in dialogues(60) for turn in dialogue)
    for mark in (r"\[laughter\]", r"\[noise\]", r"\[laughter-\w+\]", r"\w+\[\w+\]-"):
        assert re.search(mark, text)
    assert "uh-huh" in text
    assert "{" not in text


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_every_alternative_of_the_grammar_expands(topic):
    grammar = {**SHARED, **TOPICS[topic], "name": ["ann"], "topic": [topic]}
    used = {
        symbol
        for alternatives in grammar.values()
        for text in alternatives
        for symbol in re.findall(r"\{(\w+)\}", text)
    }
    assert used <= set(grammar)
    for symbol in grammar:
        assert re.fullmatch(r"[A-Za-z' ]+", expand(symbol, grammar, random.Random(0)))
