"""Statistics of the actors, for summaries, for ``timers.json`` and for a table at the end of the run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trajtrainer.envs.workers.supervisor import Member, Phase
from trajtrainer.run.actors.pool import ActorPool

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
    """Reports statistics of each actor outside the loop. Empty until ``pool`` is set."""

    def __init__(self) -> None:
        self.pool: ActorPool | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return one mapping per actor, in the format of ``timers.json``. Times include the time before restarts."""
        if self.pool is None:
            return []
        rows = []
        for member, history in zip(self.pool.members, self.pool.histories, strict=True):
            total = history.total
            seconds = 0.0 if history.first_s is None else time.monotonic() - history.first_s
            rows.append(
                {
                    "number": member.number,
                    "is_working": _is_working(member),
                    "restarts": member.quota.used,
                    "environment_steps": total.environment_steps,
                    "agent_steps": history.agent_steps,
                    "episodes": history.episodes,
                    "seconds": seconds,
                    "steps_per_second": history.agent_steps / max(seconds, 1e-9),
                    "stepping_s": total.step_s,
                    "acting_s": total.act_s,
                    "collecting_s": total.collect_s,
                    "waiting_s": total.wait_s,
                    "synchronizing_s": total.synchronize_s,
                    "synchronizations": total.synchronizations,
                    "policy_lag": history.lag_sum / max(1, history.agent_steps),
                }
            )
        return rows

    def table(self) -> list[str]:
        """Return the lines of a table; empty if there are no actors outside the loop."""
        rows = self.rows()
        if not rows:
            return []
        cells = [[title for title, _ in _COLUMNS]]
        cells += [[form.format(**_with_shares(row)) for _, form in _COLUMNS] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]

    def summary(self) -> str:
        """Return the number of working actors and their average waiting time; empty if there are no actors."""
        rows = self.rows()
        if not rows:
            return ""
        waiting = [_with_shares(row)["waiting"] for row in rows if row["is_working"]]
        return f"{len(waiting)} of {len(rows)}, waiting {sum(waiting) / max(1, len(waiting)):.0%}"


def _is_working(member: Member) -> bool:
    return member.phase in (Phase.READY, Phase.WORKING)


def _with_shares(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row plus the fractions of the actor's time."""
    seconds = max(row["collecting_s"] + row["waiting_s"] + row["synchronizing_s"], 1e-9)
    shares = {name: row[f"{name}_s"] / seconds for name in ("stepping", "acting", "waiting")}
    each = 1e3 * row["synchronizing_s"] / max(1, row["synchronizations"])
    return {**row, **shares, "synchronization_ms": each}


class ActorStatistics:
    """Computes statistics of all actors since the last summary of a behavior."""

    def __init__(self, pool: ActorPool) -> None:
        self._pool = pool
        self._before = self._now()

    def __call__(self) -> dict[str, float]:
        """Return the value of each tag. Fractions are of the total time of all actors, except for ``Learner Busy``."""
        before, self._before = self._before, self._now()
        seconds, waited, stepping, acting, waiting, total, synchronized = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        shares = {"Stepping": stepping, "Acting": acting, "Waiting": waiting}
        return {
            "Actors/Working": float(sum(map(_is_working, self._pool.members))),
            **{f"Actors/{name}": value / max(total, 1e-9) for name, value in shares.items()},
            "Actors/Synchronizations per Second": synchronized / max(seconds, 1e-9),
            "Actors/Learner Busy": 1 - waited / max(seconds, 1e-9),
        }

    def _now(self) -> Sequence[float]:
        totals = [history.total for history in self._pool.histories]
        return (
            time.monotonic(),
            self._pool.transport.waited_s,
            sum(total.step_s for total in totals),
            sum(total.act_s for total in totals),
            sum(total.wait_s for total in totals),
            sum(total.collect_s + total.wait_s + total.synchronize_s for total in totals),
            sum(total.synchronizations for total in totals),
        )
