"""Every second is in one account."""

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.metrics import accounts
from torch_xla._engine.metrics.accounts import Ledger

NAMES = st.sampled_from(accounts.NAMES)


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "settle"]), NAMES, st.integers(0, 9)), max_size=60))
def test_the_accounts_sum_to_the_time_and_never_shrink(acts: list[tuple[str, str, int]]) -> None:
    now, depth = 100.0, 0
    ledger = Ledger(now)
    before = dict.fromkeys(accounts.NAMES, 0.0)
    for act, name, passed in acts:
        now += passed
        if act == "enter":
            ledger.enter(name, now)
            depth += 1
        elif act == "leave" and depth:
            ledger.leave(now)
            depth -= 1
        else:
            after = ledger.settle(name, now)
            assert sum(after.values()) == now - 100
            assert all(after[each] >= before[each] for each in after)
            before = after


def test_an_inner_block_is_not_booked_on_the_outer_one() -> None:
    ledger = Ledger(0.0)
    ledger.enter(accounts.INPUT, 1.0)
    ledger.enter(accounts.COMPILE, 3.0)
    ledger.leave(7.0)
    ledger.leave(8.0)
    found = ledger.settle(accounts.STEP, 10.0)
    expected = {accounts.STEP: 3.0, accounts.INPUT: 3.0, accounts.COMPILE: 4.0}
    assert found == dict.fromkeys(accounts.NAMES, 0.0) | expected


def test_clocks_read_out_of_order_book_nothing_twice() -> None:
    ledger = Ledger(0.0)
    assert sum(ledger.settle(accounts.IDLE, 5.0).values()) == 5
    assert sum(ledger.settle(accounts.IDLE, 4.0).values()) == 5
    assert sum(ledger.settle(accounts.IDLE, 6.0).values()) == 6


def seconds(name: str) -> float:
    return accounts.ledger.settle(accounts.IDLE, time.perf_counter())[name]


def test_a_block_is_booked_also_where_it_raises() -> None:
    before = seconds(accounts.CHECKPOINT)
    with pytest.raises(KeyError), accounts.spent(accounts.CHECKPOINT):
        time.sleep(0.02)
        raise KeyError
    after = seconds(accounts.CHECKPOINT)
    assert after - before >= 0.02
    time.sleep(0.02)
    assert seconds(accounts.CHECKPOINT) == after


def test_other_threads_are_not_booked() -> None:
    def load() -> None:
        with accounts.spent(accounts.INPUT):
            time.sleep(0.02)

    before = seconds(accounts.INPUT)
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert seconds(accounts.INPUT) == before


def test_an_unknown_account_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no account 'lunch'; there are compile, input"):
        accounts.spent("lunch")


def test_a_forked_process_begins_accounts_of_its_own() -> None:
    with accounts.spent(accounts.RECOVERY):
        ledger = accounts.ledger
        try:
            accounts._begin_anew()
            with accounts.spent(accounts.INPUT):
                pass
            assert sum(accounts.ledger.settle(accounts.IDLE, time.perf_counter()).values()) < 5
            assert accounts.ledger is not ledger and os.getpid()
        finally:
            accounts.ledger = ledger
