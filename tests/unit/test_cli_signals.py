"""One signal interrupts in order; more of them escalate."""

import signal

import pytest

from team.cli.signals import Interrupted, interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_interrupts_and_the_next_ones_escalate(number: signal.Signals) -> None:
    escalations: list[int] = []
    with interruptible() as interruption:
        interruption.again = lambda: escalations.append(interruption.count)
        with pytest.raises(Interrupted, match=number.name):
            signal.raise_signal(number)
        assert escalations == []
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert escalations == [2, 3]


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(Interrupted), interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_interruption_is_no_ordinary_error() -> None:
    """Code that handles errors of its own must not swallow it."""
    assert not issubclass(Interrupted, Exception)
