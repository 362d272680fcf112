"""What a question to an object of the script's may raise, and what has to reach the script."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator

import pytest

from supervisor.errors import let_pass, pass_on
from supervisor.fault_injection.injector import InjectedFault
from supervisor.worker.core.process_signs import ExitRequest


class Odd(BaseException):
    pass


class Asked:
    """Each property raises, as those of a script may."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    @property
    def name(self) -> str:
        raise self.error("who asks?")


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def by_signal(signum: int) -> Callable[[], None]:
    def ask() -> None:
        signal.raise_signal(signum)

    return ask


def kept(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except BaseException as error:
        try:
            pass_on(error)
        except type(error):
            return False
        return True
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt, Odd])
def test_what_a_property_raises_is_kept(error: type[BaseException]) -> None:
    assert kept(lambda: Asked(error).name)


def test_what_is_to_end_the_process_is_passed_on() -> None:
    def leaves() -> None:
        raise ExitRequest("interrupted", "SIGTERM")

    def fails() -> None:
        raise InjectedFault("at step 3")

    assert not kept(leaves)
    assert not kept(fails)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, TimeoutError, Odd])
def test_what_came_of_a_signal_while_we_asked_is_passed_on(
    error: type[BaseException], handled: None
) -> None:
    def handler(signum: int, frame: object) -> None:
        deeper()

    def deeper() -> None:
        raise error("leave")

    signal.signal(signal.SIGUSR1, handler)

    assert not kept(by_signal(signal.SIGUSR1))
    assert kept(deeper)


class Limit:
    def __call__(self, signum: int, frame: object) -> None:
        raise TimeoutError("the night is over")

    def passed(self, why: str, signum: int, frame: object) -> None:
        raise TimeoutError(why)


@pytest.mark.parametrize("handler", [Limit(), functools.partial(Limit().passed, "it is over")])
def test_a_time_limit_is_passed_on_whatever_its_handler_is(
    handler: Callable[[int, object], None], handled: None
) -> None:
    signal.signal(signal.SIGUSR1, handler)

    assert not kept(by_signal(signal.SIGUSR1))


def test_ctrl_c_is_passed_on() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert not kept(by_signal(signal.SIGINT))


def test_what_an_alert_handler_raises_to_end_the_training_is_passed_on() -> None:
    def handler() -> None:
        try:
            raise SystemExit(3)
        except SystemExit as error:
            let_pass(error)
            raise

    assert not kept(handler)
