"""What connections sent to is remembered: the last few topics of each."""

from __future__ import annotations

from broker.produce.core.sending import ProducingConnections


def test_the_topics_that_were_sent_to_last_are_remembered() -> None:
    producing: ProducingConnections[str] = ProducingConnections(topics_max=2)
    producing.sent("one", "b", 1.0)
    producing.sent("one", "a", 2.0)
    producing.sent("one", "b", 3.0)
    producing.sent("two", "a", 4.0)
    assert (producing.topics_of("one"), producing.topics_of("two")) == (["a", "b"], ["a"])
    producing.sent("one", "c", 5.0)
    assert producing.topics_of("one") == ["b", "c"]


def test_a_connection_that_is_gone_is_forgotten() -> None:
    producing: ProducingConnections[str] = ProducingConnections()
    producing.sent("one", "a", 1.0)
    producing.close("one")
    producing.close("never sent")
    assert (producing.topics_of("one"), len(producing)) == ([], 0)
