"""The small tools."""

import os
import socket
import threading
import time
from collections import namedtuple
from typing import Any

import pytest
import torch

import torch_xla.utils.utils as xu
from torch_xla.utils.closures import AsyncClosureHandler, ClosureHandler

Pair = namedtuple("Pair", "a b")


def test_a_sample_generator_gives_the_same_data_as_often_as_it_is_told() -> None:
    data = (torch.zeros(2), torch.ones(2))
    loader = xu.SampleGenerator(data, 3)
    assert len(loader) == 3
    for _ in range(2):
        assert all(sample is data for sample in loader)
        assert len(list(loader)) == 3
    iterator = iter(xu.SampleGenerator(data, 1))
    assert iterator.next() is data
    with pytest.raises(StopIteration):
        iterator.next()
    assert list(xu.SampleGenerator(data, 0)) == []


def test_a_generator_of_pairs_applies_its_function() -> None:
    loader = xu.FnDataGenerator(lambda x: x.sum(1), 4, torch.rand, dims=[2, 3], count=2)
    assert len(loader) == 2
    for _ in range(2):
        pairs = list(loader)
        assert len(pairs) == 2
        for data, target in pairs:
            assert data.shape == (4, 2, 3) and torch.equal(target, data.sum(1))
    [(data, _)] = xu.FnDataGenerator(torch.neg, 4, torch.rand)
    assert data.shape == (4, 1)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [("3", int, 3), ("0.5", float, 0.5), ("x", str, "x"), ("1", bool, True), ("0", bool, False), ("", str, "")],
)
def test_a_variable_is_read_as_a_type(monkeypatch: pytest.MonkeyPatch, text: str, kind: Any, expected: Any) -> None:
    monkeypatch.setenv("SOME_VARIABLE", text)
    value = xu.getenv_as("SOME_VARIABLE", kind)
    assert value == expected and type(value) is type(expected)


def test_a_variable_that_is_not_set_has_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_VARIABLE", raising=False)
    assert xu.getenv_as("SOME_VARIABLE", int) is None
    assert xu.getenv_as("SOME_VARIABLE", int, 5) == 5
    assert not xu.check_env_flag("SOME_VARIABLE")
    assert xu.check_env_flag("SOME_VARIABLE", "1")


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("True", True), ("2", True), ("0", False), ("-1", False), ("no", False)]
)
def test_a_flag_is_true_or_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("SOME_VARIABLE", text)
    assert xu.check_env_flag("SOME_VARIABLE", "1") is expected


def test_instances_are_visited_once_in_order() -> None:
    x, y = torch.ones(1), torch.ones(1)
    found: list[Any] = []
    cycle: list[Any] = [x, {"y": (y, x)}]
    cycle.append(cycle)
    xu.for_each_instance(cycle, lambda v: isinstance(v, torch.Tensor), found.append)
    assert len(found) == 2 and found[0] is x and found[1] is y


def test_instances_are_replaced_and_the_rest_is_shared() -> None:
    words = ["a", "b"]
    data = {"pair": Pair(1, words), "list": [2, 2.5], "nothing": words, "set": {3}}
    result = xu.for_each_instance_rewrite(data, lambda v: type(v) is int, lambda v: v * 10)
    assert result == {"pair": Pair(10, words), "list": [20, 2.5], "nothing": words, "set": {30}}
    assert type(result["pair"]) is Pair and result["nothing"] is words and result["pair"].b is words
    assert data["list"] == [2, 2.5]
    assert xu.for_each_instance_rewrite(data, lambda v: False, lambda v: None) is data


def test_lists_have_shapes() -> None:
    assert xu.shape(3) == []
    assert xu.shape([]) == [0]
    assert xu.shape([[1], [2], [3]]) == [3, 1]
    assert xu.shape(([[]], [[]])) == [2, 1, 0]
    with pytest.raises(ValueError, match="expected parts of one shape"):
        xu.shape([[1], [2, 3]])


def test_small_list_tools() -> None:
    assert xu.as_list("x") == ["x"] and xu.as_list(None) == [None]
    for given in ([1], (1,)):
        assert xu.as_list(given) is given
    assert xu.flatten_nested_tuple(1) == (1,) and xu.flatten_nested_tuple(((), (1, ((2,), "ab")))) == (1, 2, "ab")
    first = [1]
    assert xu.list_copy_append(first, 2) == [1, 2] and first == [1]


def test_printing_goes_to_the_standard_error_if_at_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    xu.eprint("a", 1)
    xu.null_print("b")
    monkeypatch.setenv("DEBUG", "1")
    xu.get_print_fn()("c")
    monkeypatch.setenv("DEBUG", "0")
    xu.get_print_fn()("d")
    xu.get_print_fn(debug=True)("e")
    assert capsys.readouterr() == ("", "a 1\nc\ne\n")


def test_times_are_printed() -> None:
    lines: list[str] = []
    assert xu.timed(lambda: time.sleep(0.01) or 3, "slept ", lines.append) == 3
    assert xu.timed(lambda: 4, printfn=None) == 4
    with xu.TimedScope("block ", lines.append):
        pass
    with pytest.raises(KeyError), xu.TimedScope("failed ", lines.append):
        raise KeyError("x")
    assert [line.split()[0] for line in lines] == ["slept", "block", "failed"]
    assert float(lines[0].removeprefix("slept ").removesuffix("ms")) >= 10
    assert "ERROR" not in lines[1] and lines[2].endswith("ms; ERROR: 'x'")


def test_temporary_things_go_with_their_objects() -> None:
    folder = xu.TmpFolder()
    with open(os.path.join(folder.name, "file"), "w") as file:
        file.write("x")
    name = folder.name
    del folder
    assert not os.path.exists(name)

    calls: list[int] = []
    value = xu.LazyProperty(lambda: calls.append(1))
    assert value.value is None and value.value is None and calls == [1]


def test_free_ports_can_be_bound() -> None:
    for left in reversed(range(8)):
        ports = xu.get_free_tcp_ports(4)
        assert len(set(ports)) == 4
        try:
            for port in ports:
                with socket.socket() as each:
                    each.bind(("", port))
            break
        except OSError:  # another program has taken one meanwhile
            assert left
    assert len(xu.get_free_tcp_ports()) == 1


def test_work_is_done_in_threads_and_keeps_its_order() -> None:
    together = threading.Barrier(3, timeout=60)
    assert xu.parallel_work(3, lambda x, y: (together.wait(), x + y)[1], [1, 2, 3], [10, 20, 30]) == [11, 22, 33]
    with pytest.raises(ZeroDivisionError):
        xu.parallel_work(2, lambda x: 1 / x, [1, 0])


def test_closures_run_in_order_in_another_thread() -> None:
    handler, ran = AsyncClosureHandler(max_queue_size=2), []
    handler.start_event_loop()
    assert isinstance(handler, ClosureHandler)
    handler.run_all([lambda i=i: ran.append((i, threading.get_ident())) for i in range(5)])  # type: ignore[misc]
    handler.join()
    assert [i for i, _ in ran] == [0, 1, 2, 3, 4]
    assert {thread for _, thread in ran}.isdisjoint({threading.get_ident()})


def test_running_waits_while_too_many_closures_wait() -> None:
    handler, go = AsyncClosureHandler(max_queue_size=1), threading.Event()
    handler.run(go.wait)
    handler.run(lambda: None)
    extra = threading.Thread(target=lambda: handler.run(lambda: None))
    extra.start()
    extra.join(0.05)
    assert extra.is_alive()
    go.set()
    extra.join(60)
    assert not extra.is_alive()
    handler.join()


def test_what_a_closure_raised_is_raised_by_the_next_call() -> None:
    handler = AsyncClosureHandler()

    def fail() -> None:
        raise OSError("full disk")

    handler.run(fail)
    with pytest.raises(OSError, match="full disk"):
        for _ in range(1000):  # until the thread has come to it
            time.sleep(0.01)
            handler.run(lambda: None)
    handler.run(lambda: None)
    handler.join()
