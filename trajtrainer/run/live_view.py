"""The live view of a run: one line per behavior, redrawn at each summary and every few seconds in between.

It is shown on a terminal or below a notebook cell. Otherwise, only the summary lines in the log show the progress. The
view does not use a thread: the loop calls ``due()``, which is fast, and passes plain data to ``update``.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trajtrainer.core.printable import one_line
from trajtrainer.run.logs import ConsoleHandler
from trajtrainer.run.progress import BehaviorProgress, ProgressView, RunProgress

if TYPE_CHECKING:
    from rich.console import ConsoleOptions

_INTERVAL_S = 0.5
# A redraw takes 1.5 ms (one behavior) to 6 ms (ten). The pause between redraws is proportional to this time, so that
# the view uses at most 1/1000 of the run time.
_PAUSE_PER_COST = 1000
_RATE_WINDOW = 40  # number of redraws to average the steps per second over
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_WIDTHS = (8, 12)  # on a normal and on a wide terminal
_NOTEBOOK_WIDTH = 100
_NOTEBOOK_FORMAT = '<pre style="line-height: 1.35; margin: 0">{code}</pre>'
_SHOW_CURSOR = b"\x1b[?25h"
# On narrower terminals, the least important columns shrink or are left out.
_FULL = 96
_WIDE = 78
_MEDIUM = 64
_NARROW = 56
_NARROWEST = 36
_TITLES = ("", "", "", "step", "left", "reward", "", "evaluated", "best", "steps/s")
_NAME, _BAR, _STEP, _LEFT, _REWARD, _COURSE, _EVALUATED, _BEST, _RATE = 0, 1, 3, 4, 5, 6, 7, 8, 9


class _DrawnView(ProgressView):
    """A view that is rendered with rich."""

    def __init__(self) -> None:
        self._progress: RunProgress | None = None
        self._started = time.monotonic()
        self._next = 0.0
        self._rendered = 0.0
        self._num_summaries = 0
        self._rates: dict[str, _Rate] = {}

    def due(self, num_summaries: int = 0) -> bool:
        is_new, self._num_summaries = num_summaries != self._num_summaries, num_summaries
        if is_new:
            self._next = min(self._next, self._rendered + _INTERVAL_S)
        return time.monotonic() >= self._next

    def close(self) -> None:
        if self._progress is not None and not self._progress.ended:
            self.update(replace(self._progress, ended=True))

    def _draw(self, progress: RunProgress, options: ConsoleOptions, show: Callable[[RenderableType], object]) -> None:
        """Render ``progress`` and pass it to ``show``. The longer this takes, the later the next redraw is due."""
        now = time.monotonic()
        self._progress = progress
        rates = {}
        for behavior in progress.behaviors:
            rate = self._rates.setdefault(behavior.name, _Rate())
            rates[behavior.name] = rate.update(now, behavior.step)
        show(render(progress, rates, now - self._started, options))
        self._rendered = now
        self._next = now + max(_INTERVAL_S, _PAUSE_PER_COST * (time.monotonic() - now))


class LiveView(_DrawnView):
    """Draws on a terminal with rich. Log lines and other output scroll above the view."""

    def __init__(self, console: Console, handler: ConsoleHandler | None = None) -> None:
        """Start drawing.

        Args:
            console: console of the terminal.
            handler: the console handler of the log. Its lines are printed above the view until ``close``.
        """
        super().__init__()
        self._console = console
        self._handler = handler
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        if handler is not None:
            handler.sink = lambda line: console.print(Text(line), soft_wrap=True)

    def update(self, progress: RunProgress) -> None:
        self._draw(progress, self._console.options, self._show)

    def close(self) -> None:
        super().close()
        if self._handler is not None:
            self._handler.sink = None
        with contextlib.suppress(OSError):
            self._live.stop()

    def abandon(self) -> None:
        os.write(self._console.file.fileno(), _SHOW_CURSOR)

    def _show(self, view: RenderableType) -> None:
        with contextlib.suppress(OSError):  # The terminal may be gone.
            self._live.update(view, refresh=True)


class NotebookView(_DrawnView):
    """Draws below a notebook cell, always in the same place even if the cell prints other output."""

    def __init__(self, display: Any) -> None:
        """Create the view without drawing anything.

        Args:
            display: the module ``IPython.display``. Unlike widgets, it works in all notebooks.
        """
        super().__init__()
        self._display = display
        self._place: Any = None

    def update(self, progress: RunProgress) -> None:
        console = Console(file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, force_jupyter=False)
        self._draw(progress, console.options, lambda view: self._show(console, view))

    def _show(self, console: Console, view: RenderableType) -> None:
        console.print(view)
        text = console.export_text(clear=False)
        html = console.export_html(inline_styles=True, code_format=_NOTEBOOK_FORMAT)  # also escapes names
        content = {"text/html": html, "text/plain": text}
        if self._place is None:
            self._place = self._display.display(content, raw=True, display_id=True)
        else:
            self._place.update(content, raw=True)


def make_view(handler: ConsoleHandler, *, debug: bool, environ: Mapping[str, str] = os.environ) -> ProgressView:
    """Create a live view for a terminal or notebook. It shows nothing elsewhere, or if the output is for a program."""
    if handler.quiet or handler.as_json or debug or environ.get("CI"):
        return ProgressView()
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:  # this process is a notebook kernel
        return NotebookView(importlib.import_module("IPython.display"))
    if environ.get("TERM", "") in ("dumb", "unknown"):
        return ProgressView()
    console = Console(highlight=False)
    return LiveView(console, handler) if console.is_terminal and not console.is_dumb_terminal else ProgressView()


class _Rate:
    """Computes steps per second over the last redraws."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)

    def update(self, now: float, step: int) -> float | None:
        self._points.append((now, step))
        then, before = self._points[0]
        seconds = now - then
        return (step - before) / seconds if seconds > 0 else None


def render(
    progress: RunProgress, rates: Mapping[str, float | None], elapsed_s: float, options: ConsoleOptions
) -> RenderableType:
    """Lay out the view for rich.

    Args:
        progress: the progress to show.
        rates: steps per second of each behavior; None if unknown.
        elapsed_s: seconds since the start of the run.
        options: console options, with the width and whether only ASCII is supported.
    """
    if not progress.behaviors:
        return Group(
            Text(), Text("Waiting for the environment's first agents", style="dim"), _footer(progress, elapsed_s)
        )
    width = options.max_width
    left_out = {_COURSE} if width < _WIDE else set()
    if width < _FULL or all(behavior.evaluated is None for behavior in progress.behaviors):
        left_out.add(_EVALUATED)
    if width < _FULL or all(behavior.best is None for behavior in progress.behaviors):
        left_out.add(_BEST)
    if width < _MEDIUM:
        left_out.add(_BAR)  # the percentage remains
    if width < _NARROW:
        left_out |= {_STEP, _RATE}
    if width < _NARROWEST:
        left_out |= {_LEFT, _REWARD}
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    course = 0 if options.ascii_only else _SPARK_WIDTHS[width >= _FULL]
    rows = [_cells(behavior, rates.get(behavior.name), course, progress.ended) for behavior in progress.behaviors]
    for number in range(len(_TITLES)):
        if number in left_out:
            continue
        if number == _BAR:
            table.add_column(ratio=1, min_width=6)
        elif number == _NAME:
            table.add_column(no_wrap=True, max_width=max(12, width // 5), ratio=1 if _BAR in left_out else None)
        else:
            table.add_column(no_wrap=True, justify="left" if number == _COURSE else "right")
    headings: list[RenderableType] = [Text(title, style="dim") for title in _TITLES]
    for row in [headings, *rows]:
        table.add_row(*(cell for number, cell in enumerate(row) if number not in left_out))
    return Group(Text(), table, _footer(progress, elapsed_s))


def _cells(behavior: BehaviorProgress, rate: float | None, course: int, ended: bool) -> list[RenderableType]:
    total = max(behavior.max_steps, 1)
    share = min(behavior.step / total, 1.0)
    done = behavior.done or behavior.step >= behavior.max_steps
    if ended:
        left = "done" if done else "stopped"
    elif behavior.done:
        left = "done"
    elif not behavior.training:
        left = "acting"
    elif done:
        left = "done"
    else:
        left = duration((behavior.max_steps - behavior.step) / rate) if rate else "-"
    return [
        Text(one_line(behavior.name), style="bold", overflow="ellipsis"),
        ProgressBar(total=total, completed=min(behavior.step, total)),
        Text(f"{int(100 * share)}%"),
        Text(f"{count(behavior.step)}/{count(behavior.max_steps)}"),
        Text(left),
        Text(f"{behavior.rewards[-1]:.3f}" if behavior.rewards else "-", style="bold"),
        Text(sparkline(behavior.rewards, course), style="cyan"),
        Text("-" if behavior.evaluated is None else f"{behavior.evaluated:.3f}"),
        Text("-" if behavior.best is None else f"{behavior.best:.3f}"),
        Text("-" if rate is None else f"{rate:,.0f}"),
    ]


def _footer(progress: RunProgress, elapsed_s: float) -> Text:
    lessons = ", ".join(f"{name}: {lesson}" for name, lesson in progress.lessons.items())
    parts = {"epoch": progress.epoch, "actors": progress.actors, "lessons": lessons}
    line = "   ".join([f"{duration(elapsed_s)} elapsed", *(f"{name}  {text}" for name, text in parts.items() if text)])
    return Text(one_line(line), style="dim", no_wrap=True, overflow="ellipsis")


def sparkline(values: Sequence[float], width: int) -> str:
    """Plot ``values`` as at most ``width`` block characters. If there are more values, they are averaged in groups."""
    finite = [value for value in values if value - value == 0]
    if len(finite) < 2 or width < 1:
        return ""
    width = min(width, len(finite))
    borders = [i * len(finite) // width for i in range(width + 1)]
    means = [sum(value / (b - a) for value in finite[a:b]) for a, b in pairwise(borders)]  # sums cannot overflow
    if max(means) - min(means) == math.inf:
        means = [mean / 2 for mean in means]
    low, high = min(means), max(means)
    if high == low:
        return _SPARK[3] * width
    return "".join(_SPARK[int((value - low) / (high - low) * (len(_SPARK) - 1) + 0.5)] for value in means)


def count(steps: int) -> str:
    """Format a number of steps with at most four significant digits: 950, 12.5k, 1.23M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if steps >= size:
            return f"{int(steps / size * 100) / 100:.4g}{letter}"  # rounded down, to not show the total early
    return str(steps)


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: 45s, 12m 31s, 3h 05m, 2d 04h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
