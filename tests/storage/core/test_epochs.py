"""Epochs of a log that is cut, also below where an earlier epoch began."""

from storage.core.epochs import Epochs


def test_a_cut_below_an_epoch_s_start_leaves_nothing_of_that_epoch_and_can_be_read_again() -> None:
    epochs = Epochs([])
    epochs.rise(5000)
    epochs.rise(3000)
    assert [epochs.limit_of(epoch) for epoch in (1, 2, 3)] == [3000, 3000, None]
    assert Epochs.of_content(epochs.content(), "epoch.json").limit_of(1) == 3000
