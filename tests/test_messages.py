"""The messages that a user can meet, as ``scripts/messages`` lists them.

``pytest -s tests/test_messages.py`` prints the list: read it in one sitting, and rewrite what a native English-speaking
engineer would not say.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from scripts.messages import PACKAGE, Message, messages

# Words of CONTRIBUTING's list, and turns of phrase that came in by translation.
TRANSLATED = re.compile(
    r"\b(behaviour|colour|neighbour|normalise|learnt|anew|nobody|whoever|beside|beforehand|goes on|go on|"
    r"so many|by itself|of its own accord|in the midst|ahead of)\b"
)


@cache
def of_package() -> list[Message]:
    return list(messages())


def place(message: Message) -> str:
    return f"{message.file.relative_to(PACKAGE).as_posix()}:{message.line}: {message.text}"


def test_the_list() -> None:
    for message in of_package():
        print(message.kind.ljust(6), place(message))
    by_kind = {kind: [each.text for each in of_package() if each.kind == kind] for kind in ("error", "log", "help")}
    assert {kind for kind, texts in by_kind.items() if len(texts) < 20} == set()
    assert any(text.startswith("The checkpoint {path} does not exist") for text in by_kind["error"])
    assert "Training continues" in " ".join(by_kind["log"])


def test_messages_are_in_plain_english() -> None:
    assert [place(message) for message in of_package() if TRANSLATED.search(message.text)] == []


def test_a_message_is_found_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""A docstring is not a message."""\n'
        "def f(name):\n"
        '    """Nor is this one here."""\n'
        '    logger.warning("the log of %s is gone", name)\n'
        '    print(f"wrote the file {name}")\n'
        '    raise ValueError(f"there is no run {name}. " "Expected another one.")\n'
        'parser.add_argument("--x", help="what the option does")\n'
        'problem = "one that its caller knows"\n'
        'PATTERN = "(?P<name>x+)"\n',
        encoding="utf-8",
    )
    (tmp_path / "b.js").write_text(
        "// a comment with words\nshow('No runs are there yet', `${n} of the runs`);\n", encoding="utf-8"
    )
    found = {(each.kind, each.text) for each in messages(tmp_path)}
    assert found == {
        ("log", "the log of %s is gone"),
        ("output", "wrote the file {name}"),
        ("error", "there is no run {name}. Expected another one."),
        ("help", "what the option does"),
        ("text", "one that its caller knows"),
        ("page", "No runs are there yet"),
        ("page", "${n} of the runs"),
    }
