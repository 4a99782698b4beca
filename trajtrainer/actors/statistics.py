"""Tells what each actor has done: tags, a table at the end, and a part of ``timers.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trajtrainer.actors.pool import ActorPool, ActorState

_COLUMNS = (
    ("actor", "{number}"),
    ("env steps", "{environment_steps:,}"),
    ("agent steps", "{agent_steps:,}"),
    ("episodes", "{episodes:,}"),
    ("steps/s", "{steps_per_second:,.0f}"),
    ("stepping", "{stepping:.0%}"),
    ("acting", "{acting:.0%}"),
    ("waiting", "{waiting:.0%}"),
    ("syncs", "{synchronizations:,}"),
    ("ms each", "{synchronization_ms:.2f}"),
    ("lag", "{policy_lag:.2f}"),
    ("restarts", "{restarts}"),
)


class ActorReport:
    """The actors of a run as rows; none before there are any."""

    def __init__(self) -> None:
        """Begin without actors."""
        self.pool: ActorPool | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping for each actor, as ``timers.json`` has them. Seconds are of the whole run."""
        return [] if self.pool is None else [_row(actor, self.pool) for actor in self.pool.actors]

    def table(self) -> list[str]:
        """Return the lines of a table; none without actors."""
        rows = self.rows()
        if not rows:
            return []
        cells = [[title for title, _ in _COLUMNS]]
        cells += [[form.format(**_shares(row)) for _, form in _COLUMNS] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]

    def summary(self) -> str:
        """Return how many actors work and how much they wait, for the live view; empty without actors."""
        pool = self.pool
        if pool is None:
            return ""
        working = [row for row in map(_shares, self.rows()) if row["is_working"]]
        waiting = sum(row["waiting"] for row in working) / max(1, len(working))
        return f"{len(working)} of {len(pool.actors)}, waiting {waiting:.0%}"


def _row(actor: ActorState, pool: ActorPool) -> dict[str, Any]:
    total = actor.total
    seconds = pool.seconds_of(actor)
    return {
        "number": actor.number,
        "is_working": actor.is_working,
        "restarts": actor.quota.used,
        "environment_steps": total.environment_steps,
        "agent_steps": actor.agent_steps,
        "episodes": actor.episodes,
        "seconds": seconds,
        "steps_per_second": actor.agent_steps / max(seconds, 1e-9),
        "stepping_s": total.step_s,
        "acting_s": total.act_s,
        "collecting_s": total.collect_s,
        "waiting_s": total.wait_s,
        "synchronizing_s": total.synchronize_s,
        "synchronizations": total.synchronizations,
        "policy_lag": actor.lag_sum / max(1, actor.agent_steps),
    }


def _shares(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with parts of the actor's time beside its seconds."""
    seconds = max(row["collecting_s"] + row["waiting_s"] + row["synchronizing_s"], 1e-9)
    parts = {name: row[f"{name}_s"] / seconds for name in ("stepping", "acting", "waiting")}
    each = 1e3 * row["synchronizing_s"] / max(1, row["synchronizations"])
    return {**row, **parts, "synchronization_ms": each}


class ActorStatistics:
    """A statistics source: what all actors did between two summaries of one behaviour."""

    def __init__(self, pool: ActorPool) -> None:
        """Begin to count.

        Args:
            pool: whose actors.
        """
        self._group = pool
        self._before = self._now()

    def __call__(self) -> dict[str, float]:
        """Return tag -> value; parts of time are of all actors together, or of the learner."""
        before, self._before = self._before, self._now()
        seconds, waited, stepping, acting, waiting, total, synchronized = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        shares = {"Stepping": stepping, "Acting": acting, "Waiting": waiting}
        return {
            "Actors/Working": float(sum(actor.is_working for actor in self._group.actors)),
            **{f"Actors/{name}": value / max(total, 1e-9) for name, value in shares.items()},
            "Actors/Synchronizations per Second": synchronized / max(seconds, 1e-9),
            "Actors/Learner Busy": 1 - waited / max(seconds, 1e-9),
        }

    def _now(self) -> Sequence[float]:
        pool = self._group
        totals = [actor.total for actor in pool.actors]
        return (
            pool.seconds,
            pool.waited_s,
            sum(total.step_s for total in totals),
            sum(total.act_s for total in totals),
            sum(total.wait_s for total in totals),
            sum(total.collect_s + total.wait_s + total.synchronize_s for total in totals),
            sum(total.synchronizations for total in totals),
        )
