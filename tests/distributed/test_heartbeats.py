"""What a process has heard of the others' heartbeats, without a network."""

from espnet_distopt.distributed.farewell import LEFT
from espnet_distopt.distributed.heartbeats import Heartbeats
from espnet_distopt.distributed.suspects import Suspect


def test_silence_lasts_since_the_count_has_changed() -> None:
    beats = Heartbeats()
    for now, count in ((10.0, b"1"), (11.0, b"1"), (12.0, b"2"), (13.0, b"2")):
        beats.hear(3, count, now)
    assert beats.heard == (3,)
    assert beats.silence(3, 15.0) == 3.0
    assert "learner 3 has been silent for 3 s" in beats.in_words(3, 15.0)


def test_one_that_has_left_is_known_by_its_count() -> None:
    beats = Heartbeats()
    assert not beats.has_left(1)
    beats.hear(1, LEFT, 5.0)
    assert beats.has_left(1)
    assert beats.in_words(1, 9.0) == "learner 1 has left the session 4 s ago"


def test_nothing_is_known_of_one_that_was_replaced() -> None:
    beats = Heartbeats()
    beats.hear(1, b"7", 5.0)
    beats.suspect([1], "its connection broke")
    beats.forget(1)
    assert (beats.heard, beats.suspects) == ((), {})
    beats.hear(1, b"7", 30.0)  # The replacement happens to have as many.
    assert beats.silence(1, 31.0) == 1.0


def test_after_a_stop_of_this_process_all_silences_begin_anew() -> None:
    beats = Heartbeats()
    beats.hear(1, b"7", 5.0)
    beats.suspect([1], "its connection broke")
    for now in (6.0, 6.4, 6.8):
        assert not beats.is_cleared(1, now)
    beats.begin_anew(100.0)
    assert beats.silence(1, 101.0) == 1.0
    assert beats.suspects[1] == Suspect("its connection broke")


def test_a_suspect_is_cleared_by_two_beats_or_by_leaving() -> None:
    beats = Heartbeats()
    beats.suspect([1, 2], "their connections broke")
    for count in (b"1", b"2"):
        beats.hear(1, count, 0.0)
        assert not beats.is_cleared(1, 0.0)
    beats.hear(1, b"3", 0.0)
    assert beats.is_cleared(1, 0.0)
    beats.hear(2, LEFT, 0.0)
    assert beats.is_cleared(2, 0.0)
    assert not beats.suspects


def test_a_suspect_is_overdue_after_two_seconds_of_looks() -> None:
    beats = Heartbeats()
    beats.suspect([1], "its connection broke")
    beats.hear(1, b"7", 0.0)
    for look in range(10):
        assert not beats.is_cleared(1, look / 4)
        assert beats.suspects[1].overdue() == (look > 8)


def test_late_looks_of_this_process_are_not_held_against_a_suspect() -> None:
    """The first look comes late, or the second; a beat is on its way then."""
    for looks in ((50.0, 50.5), (50.0, 55.0, 55.5)):
        beats = Heartbeats()
        beats.suspect([1], "its connection broke")
        beats.hear(1, b"7", 0.0)
        for now in looks:
            assert not beats.is_cleared(1, now)
            assert not beats.suspects[1].overdue()


def test_the_first_reason_of_a_suspicion_stays() -> None:
    beats = Heartbeats()
    beats.suspect([1], "first")
    beats.suspect([1], "second")
    assert beats.suspects[1].why == "first"
