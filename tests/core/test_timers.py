"""The tree of timed blocks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trajtrainer.core.timers import TimerNode, Timers, add_trees


def shape(tree: dict[str, Any]) -> dict[str, Any]:
    """Names and counts of a tree."""
    return {name: (child["count"], shape(child)) for name, child in tree.get("children", {}).items()}


def test_blocks_nest_and_repeat() -> None:
    timers = Timers()
    for _ in range(3):
        with timers("outer"):
            with timers("inner"):
                pass
            with timers("inner"):
                pass
    with timers("inner"):
        pass
    assert shape(timers.to_dict()) == {"outer": (3, {"inner": (6, {})}), "inner": (1, {})}


def test_self_is_what_no_child_accounts_for() -> None:
    node = TimerNode(10.0, 1, {"a": TimerNode(3.0, 2), "b": TimerNode(4.0, 1)})
    tree = node.to_dict()
    assert (tree["total"], tree["count"], tree["self"]) == (10.0, 1, 3.0)
    assert tree["children"]["a"] == {"total": 3.0, "count": 2, "self": 3.0}
    assert TimerNode(1.0, 1, {"a": TimerNode(1.5, 1)}).to_dict()["self"] == 0.0


def test_a_block_that_raises_is_counted_and_closed() -> None:
    timers = Timers()
    with pytest.raises(KeyError), timers("a"), timers("b"):
        raise KeyError
    with timers("c"):
        pass
    assert shape(timers.to_dict()) == {"a": (1, {"b": (1, {})}), "c": (1, {})}


def test_a_block_yields_its_node() -> None:
    timers = Timers()
    with timers("a") as node:
        pass
    assert node.count == 1
    assert node.total >= 0.0


def test_threads_stand_beside_the_main_tree_and_add_up_by_name() -> None:
    timers = Timers()

    def work() -> None:
        with timers("update"), timers("backward"):
            pass

    with timers("collect"):
        for _ in range(2):  # one after the other, so that the system may give both the same thread id
            thread = threading.Thread(target=work, name="trainer Ball")
            thread.start()
            thread.join(30)
    tree = timers.to_dict()
    assert shape(tree) == {"collect": (1, {}), "trainer Ball": (2, {"update": (2, {"backward": (2, {})})})}
    parallel = tree["children"]["trainer Ball"]
    assert parallel["is_parallel"]
    assert parallel["children"]["update"]["is_parallel"]
    assert parallel["total"] == parallel["children"]["update"]["total"]
    assert "is_parallel" not in tree["children"]["collect"]


def test_a_tree_can_be_shown_while_it_grows() -> None:
    timers = Timers()
    with timers("a"), timers("b"):
        tree = timers.to_dict()
    assert shape(tree) == {"a": (1, {"b": (1, {})})}
    assert tree["total"] > tree["children"]["a"]["total"] > tree["children"]["a"]["children"]["b"]["total"] > 0
    assert tree["count"] == 1
    assert shape(timers.to_dict()) == shape(tree)


def test_a_block_of_another_thread_that_is_open_counts_up_to_now() -> None:
    timers = Timers()
    begun, shown = threading.Event(), threading.Event()

    def work() -> None:
        with timers("wait"):
            begun.set()
            shown.wait(30)

    thread = threading.Thread(target=work, name="trainer Ball")
    thread.start()
    begun.wait(30)
    open_ = timers.to_dict()
    shown.set()
    thread.join(30)
    closed = timers.to_dict()
    for tree in (open_, closed):
        assert shape(tree) == {"trainer Ball": (1, {"wait": (1, {})})}
    assert 0 < open_["children"]["trainer Ball"]["total"] < closed["children"]["trainer Ball"]["total"]


def test_consecutive_parts_of_a_block() -> None:
    timers = Timers()
    for _ in range(3):
        with timers("step") as step:
            step.part("wait")
            step.part("record")
            with timers("inside"):
                pass
            step.part("send")
        with timers("step"):
            pass
    node = timers.to_dict()["children"]["step"]
    assert node["count"] == 6
    assert {name: child["count"] for name, child in node["children"].items()} == {"wait": 3, "record": 3, "send": 3}
    assert node["children"]["record"]["children"]["inside"]["count"] == 3
    assert node["self"] <= node["total"]
    assert sum(child["total"] for child in node["children"].values()) <= node["total"]


def test_an_error_ends_the_open_part() -> None:
    timers = Timers()

    def fail() -> None:
        with timers("step") as step:
            step.part("wait")
            with timers("inside"):
                raise KeyError

    with pytest.raises(KeyError):
        fail()
    with timers("after"):
        pass
    tree = timers.to_dict()["children"]
    assert tree["step"]["children"]["wait"]["count"] == 1
    assert tree["step"]["children"]["wait"]["children"]["inside"]["count"] == 1
    assert tree["after"]["count"] == 1


def test_a_part_that_is_open_counts_up_to_now() -> None:
    timers = Timers()
    with timers("step") as step:
        step.part("wait")
        node = timers.to_dict()["children"]["step"]
        assert node["children"]["wait"]["count"] == 1
        assert node["children"]["wait"]["total"] > 0


def test_seconds_by_kind_count_each_second_once() -> None:
    timers = Timers()
    inner = {"save": TimerNode(2.0, 1), "other": TimerNode(1.0, 1)}
    timers._main.children.update(learn=TimerNode(10.0, 1, inner), start=TimerNode(5.0, 1, {"step": TimerNode(4.0, 9)}))
    thread = threading.Thread(target=lambda: timers("learn").__enter__().__exit__(None, None, None))
    thread.start()
    thread.join()
    seconds = timers.seconds_by({"learn": "learning", "save": "saving", "step": "stepping", "absent": "nothing"})
    assert seconds == pytest.approx({"learning": 8.0, "saving": 2.0, "stepping": 4.0, "nothing": 0.0}, abs=0.1)
    assert seconds["learning"] > 8.0, "that of the thread counts, too"


def test_trees_of_two_sessions_add_up_block_by_block() -> None:
    first = TimerNode(10.0, 1, {"a": TimerNode(4.0, 2), "b": TimerNode(1.0, 1)}).to_dict(is_parallel=True)
    second = TimerNode(5.0, 1, {"a": TimerNode(2.0, 3), "c": TimerNode(1.0, 4)}).to_dict()
    added = add_trees(first, second)
    assert (added["total"], added["count"], added["self"], added["is_parallel"]) == (15.0, 2, 7.0, True)
    assert shape(added) == {"a": (5, {}), "b": (1, {}), "c": (4, {})}
    assert added["children"]["a"]["total"] == 6.0
    assert added["children"]["a"]["is_parallel"]
    assert "is_parallel" not in added["children"]["c"]


def test_damaged_parts_of_a_tree_count_as_nothing() -> None:
    whole = TimerNode(5.0, 1, {"a": TimerNode(2.0, 3)}).to_dict()
    damaged = {"total": "x", "count": -1, "children": {"a": 7, "b": {"total": 1.0, "count": 1}}}
    added = add_trees(whole, damaged)
    assert (added["total"], added["count"]) == (5.0, 1)
    assert shape(added) == {"a": (3, {}), "b": (1, {})}
    assert shape(add_trees(whole, {"children": []})) == {"a": (3, {})}
