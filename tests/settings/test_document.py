"""Reading YAML into a tree with places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.settings.checks import ConfigurationError, Place
from trajtrainer.settings.yaml import document
from trajtrainer.settings.yaml.document import PlacedValue, Written, read


def tree(text: str) -> PlacedValue:
    root, problems = read(text, "a.yaml")
    assert root is not None
    assert problems == []
    return root


def test_every_value_knows_its_line_and_path() -> None:
    root = tree("a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")

    assert root.plain() == {"a": {"b": Written(1, "1"), "c": ["x", {"d": Written(2, "2")}]}}
    assert root.locate(("a", "b")) == Place("a.yaml", 2, ("a", "b"))
    assert root.locate(("a", "c", "0")) == Place("a.yaml", 4, ("a", "c", "0"))
    assert root.locate(("a", "c", "1", "d")) == Place("a.yaml", 5, ("a", "c", "1", "d"))


def test_a_place_that_does_not_exist_has_the_line_of_what_surrounds_it() -> None:
    root = tree("a:\n  b: 1\n  c: [x]\n")

    assert root.locate(("a", "z", "y")) == Place("a.yaml", 1, ("a", "z", "y"))
    assert root.locate(("a", "c", "7")) == Place("a.yaml", 3, ("a", "c", "7"))
    assert root.locate(("a", "b", "z")) == Place("a.yaml", 2, ("a", "b", "z"))


def test_anchors_and_merge_keys() -> None:
    root = tree("x: &x {p: 1, q: 2}\ny: &y {q: 3, r: 4}\none: {<<: *x, p: 5}\nboth: {<<: [*x, *y]}\nsame: *x\n")

    def numbers(key: str) -> dict[str, str]:
        return {name: entry.content.text for name, entry in root.mapping[key].mapping.items()}

    assert numbers("one") == {"p": "5", "q": "2"}
    assert numbers("both") == {"p": "1", "q": "2", "r": "4"}
    assert numbers("same") == {"p": "1", "q": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a\n  b: *a\n", "a.yaml:2: a.b: an anchor contains itself"),
        ("a: !!python/none 1\n", "a.yaml:1: a: the tag tag:yaml.org,2002:python/none is not supported"),
        ("a: !!set {x}\n", "a.yaml:1: a: the tag tag:yaml.org,2002:set is not supported"),
        ("a:\n  ? [x]\n  : 1\n", "a.yaml:2: a: a key must be text, not a list or mapping"),
        ("a:\n  <<: 5\n", "a.yaml:2: a: << expects a mapping or a list of mappings"),
    ],
)  # fmt: skip
def test_yaml_that_means_nothing_here(text: str, message: str) -> None:
    _, problems = read(text, "a.yaml")

    assert [str(problem) for problem in problems] == [message]


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]

    with pytest.raises(ConfigurationError, match="has more than 20000 keys and values"):
        read("\n".join(levels), "a.yaml")


def test_nesting_without_end() -> None:
    with pytest.raises(ConfigurationError, match=r"a\.yaml: is nested too deeply"):
        read("[" * 5000 + "]" * 5000, "a.yaml")


def test_what_only_looks_like_a_date_or_a_number_is_text() -> None:
    assert tree(f"a: 2024-13-45\nb: {'9' * 5000}\n").plain() == {"a": "2024-13-45", "b": "9" * 5000}


@given(st.text(max_size=60) | st.text(alphabet="ab:-[]{}&*<>!?|#'\"\n 01,", max_size=60))
def test_any_text_is_read_or_refused_with_a_message(text: str) -> None:
    message = None
    try:
        root, _ = read(text, "a.yaml")
    except ConfigurationError as error:
        message = str(error)

    assert message.startswith("a.yaml") if message is not None else root is None or isinstance(root, PlacedValue)


def test_more_values_than_a_configuration_has_are_not_even_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document._Loader, "entry", lambda *_: pytest.fail("all of it was read"))
    with pytest.raises(ConfigurationError, match="has more than 20000 keys and values"):
        read("- a\n" * 60_000, "a.yaml")
