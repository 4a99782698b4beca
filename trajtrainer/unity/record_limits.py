"""The limit of agents of a message that are read at all.

Games stay far below; rubbish of two bytes per record does not.
"""

from __future__ import annotations

from itertools import islice

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.unity.wire_fields import fields

MOST_AGENTS = 100_000
_MOST_FIELDS = 20 * MOST_AGENTS
_SMALLEST = 2  # bytes of a record or field
_RECORD = 1


def check_count(count: int, who: str) -> None:
    """Refuse too many agents in one message.

    Raises:
        InvalidDataError: there are more than ``MOST_AGENTS``.
    """
    if count > MOST_AGENTS:
        raise InvalidDataError(f"{who} sent more than {MOST_AGENTS} agents in one message.")


def check_records(data: bytes, behavior: str) -> None:
    """Refuse a serialized list of agents of which protobuf would make millions of objects.

    Raises:
        InvalidDataError: there are too many agents, or fields in their records.
    """
    if len(data) <= _SMALLEST * MOST_AGENTS:
        return
    num_records = num_fields = 0
    for record in fields(data):
        if record.number == _RECORD:
            num_records += 1
            check_count(num_records, f"Behavior {behavior!r}")
            inside = fields(data, record.start, record.stop)
            num_fields += sum(1 for _ in islice(inside, _MOST_FIELDS + 1 - num_fields))
            if num_fields > _MOST_FIELDS:
                raise InvalidDataError(
                    f"Behavior {behavior!r}: the records of its first {num_records} agents have more than "
                    f"{_MOST_FIELDS} fields. Expected an id, a reward and the like, and one observation per sensor."
                )
