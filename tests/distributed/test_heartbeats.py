"""What a process has heard of the others' heartbeats, without a network."""

from espnet_distopt.distributed.heartbeats import LEFT, LOOKS, Heartbeats


def test_one_is_silent_since_its_count_has_changed() -> None:
    beats = Heartbeats(3)
    assert beats.why_lost(3, 100.0, awaited=True) is None
    for now, count in ((10.0, b"1"), (11.0, b"1"), (12.0, b"2"), (13.0, b"2")):
        beats.hear(3, count, now)
    assert beats.why_lost(3, 15.0, awaited=True) is None
    said = beats.why_lost(3, 15.5, awaited=False)
    assert said is not None and said.startswith("learner 3 has been silent for 4 s: ")


def test_nothing_is_known_of_one_that_was_replaced() -> None:
    beats = Heartbeats(3)
    beats.hear(1, b"7", 5.0)
    beats.suspect([1], "its connection broke")
    beats.forget(1)
    assert not beats.suspects
    beats.hear(1, b"7", 30.0)  # The replacement happens to have as many.
    assert beats.why_lost(1, 31.0, awaited=True) is None


def test_after_a_stop_of_this_process_all_begins_anew() -> None:
    beats = Heartbeats(3)
    beats.suspect([1], "its connection broke")
    for look in range(LOOKS + 1):
        beats.hear(1, b"7", 5.0 + look / 10)
    beats.begin_anew(100.0)
    beats.hear(1, b"7", 100.0)
    assert beats.why_lost(1, 102.0, awaited=True) is None
    assert beats.suspects[1].why == "its connection broke"


def test_a_suspect_is_cleared_by_two_beats_or_by_leaving() -> None:
    beats = Heartbeats(30)
    beats.suspect([1, 2], "their connections broke")
    for count in (b"1", b"2"):
        beats.hear(1, count, 0.0)
        beats.hear(2, count, 0.0)
        assert {*beats.suspects} == {1, 2}
    beats.hear(1, b"3", 0.0)
    beats.hear(2, LEFT, 0.0)
    assert not beats.suspects


def test_a_suspect_is_lost_that_does_not_count_on() -> None:
    beats = Heartbeats(30)
    beats.suspect([1], "its connection broke")
    for look in range(LOOKS + 1):
        beats.hear(1, b"7", look / 8)
        assert beats.why_lost(1, look / 8, awaited=False) is None
    for _ in range(3 * LOOKS):  # Looks for which others have asked.
        beats.hear(1, b"7", LOOKS / 8)
        assert beats.why_lost(1, LOOKS / 8, awaited=False) is None
    beats.hear(1, b"7", 3.0)
    said = beats.why_lost(1, 3.0, awaited=False)
    assert said == "learner 1 has died or does not respond: its connection broke"


def test_late_looks_of_this_process_are_not_held_against_a_suspect() -> None:
    beats = Heartbeats(30)
    beats.hear(1, b"7", 0.0)
    beats.suspect([1], "its connection broke")
    for look in range(5):
        beats.hear(1, b"7", 5.0 * look)
    assert beats.why_lost(1, 20.0, awaited=False) is None
