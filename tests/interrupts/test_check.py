"""Whose fault it is that an interrupt was never seen again."""

from tests.interrupts.check import LIBRARIES, OURS, Found, Place, _heard

OUR_LINE = Place(f"{OURS[0]}/_engine/step/sync.py", 1, "sync")
THEIR_LINE = Place(f"{LIBRARIES}/torch/_dynamo/eval_frame.py", 1, "compile_wrapper")
HOOK = Place(_heard.__code__.co_filename, _heard.__code__.co_firstlineno, _heard.__qualname__)


def test_what_is_raised_in_a_library_is_the_librarys() -> None:
    found = Found()
    found.note_unseen([OUR_LINE, THEIR_LINE])
    assert not found.lost and found.swallowed == {"compile_wrapper, torch/_dynamo/eval_frame.py": 1}


def test_what_is_raised_in_a_line_of_ours_is_lost() -> None:
    found = Found()
    found.note_unseen([THEIR_LINE, OUR_LINE])
    assert len(found.lost) == 1 and not found.swallowed


def test_the_audit_hook_belongs_to_the_caller_of_the_event() -> None:
    found = Found()
    found.note_unseen([OUR_LINE, THEIR_LINE, HOOK])
    assert not found.lost and found.swallowed.total() == 1
    found.note_unseen([THEIR_LINE, OUR_LINE, Place("<string>", 1, "f"), HOOK])
    assert len(found.lost) == 1
