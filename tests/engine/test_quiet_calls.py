"""Functions whose warnings are not shown, in several threads and beside filters of the program."""

import threading
import warnings

import pytest

from torch_xla._engine.quiet_calls import quiet


@quiet()
def say_nothing() -> None:
    warnings.warn("of the function", UserWarning, stacklevel=1)


def test_only_warnings_of_the_function_are_not_shown() -> None:
    say_nothing()
    with pytest.raises(UserWarning, match="of the program"):
        warnings.warn("of the program", UserWarning, stacklevel=1)


def test_a_later_filter_of_the_program_changes_nothing() -> None:
    with warnings.catch_warnings(record=True) as shown:
        for action in ("always", "default", "always"):
            say_nothing()
            warnings.simplefilter(action)  # type: ignore[arg-type]
        for _ in range(3):
            warnings.simplefilter("always")
            say_nothing()
        count = len(warnings.filters)
        warnings.simplefilter("always")
        say_nothing()
        assert len(warnings.filters) == count
    assert not shown


def test_other_categories_and_messages_are_shown() -> None:
    @quiet(FutureWarning, "of .* function")
    def say(category: type[Warning], text: str) -> None:
        warnings.warn(text, category, stacklevel=1)

    say(FutureWarning, "of this function")
    with pytest.raises(FutureWarning, match="of another"):
        say(FutureWarning, "of another")
    with pytest.raises(UserWarning, match="of this function"):
        say(UserWarning, "of this function")


def test_a_thread_that_leaves_first_and_one_that_leaves_last_leave_warnings_on() -> None:
    entered, leave, heard = threading.Barrier(3), [threading.Event() for _ in range(2)], []

    @quiet()
    def wait(event: threading.Event) -> None:
        entered.wait(10)
        event.wait(10)
        warnings.warn("of the function", UserWarning, stacklevel=1)

    threads = [threading.Thread(target=wait, args=(event,)) for event in leave]
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        entered.wait(10)
        warnings.warn("while both run", UserWarning, stacklevel=1)
        for event, thread in zip(leave, threads, strict=True):
            event.set()
            thread.join()
            warnings.warn("behind one", UserWarning, stacklevel=1)
        heard = [str(each.message) for each in shown]
    assert heard == ["while both run", "behind one", "behind one"]


def test_an_exception_leaves_warnings_on() -> None:
    @quiet()
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with pytest.raises(UserWarning, match="of the program"):
        warnings.warn("of the program", UserWarning, stacklevel=1)
