"""Functions whose warnings are not shown, in several threads and beside filters of the program."""

import threading
import warnings

import pytest

from torch_xla._engine.quiet_calls import quiet, quiet_block


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


def test_functions_that_are_decorated_later_add_no_filters() -> None:
    unheard = quiet(UserWarning)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        unheard(say_nothing)()
        count = len(warnings.filters)
        for _ in range(3):
            unheard(lambda: warnings.warn("of the function", UserWarning, stacklevel=1))()
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


def test_a_block_hides_its_warnings_in_every_thread_until_it_ends() -> None:
    def warn() -> None:
        warnings.warn("of the block", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with quiet_block(UserWarning, "of the block"):
            thread = threading.Thread(target=warn)
            thread.start()
            thread.join()
            warn()
            warnings.warn("of another", UserWarning, stacklevel=1)
            later = warnings.catch_warnings(record=True)
            heard = later.__enter__()
        warn()
        later.__exit__(None, None, None)
        warn()
    assert [str(each.message) for each in heard] == ["of the block"]
    assert [str(each.message) for each in shown] == ["of another", "of the block"]


def test_blocks_that_end_in_the_order_they_began_leave_warnings_on() -> None:
    first, second = quiet_block(), quiet_block()
    filters = list(warnings.filters)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    warnings.warn("of the second block", UserWarning, stacklevel=1)
    second.__exit__(None, None, None)
    assert list(warnings.filters) == filters
    with pytest.raises(UserWarning, match="of the program"):
        warnings.warn("of the program", UserWarning, stacklevel=1)
