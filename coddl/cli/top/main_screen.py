"""The first screen of `coddl top`: pool, chart, nodes, jobs, decisions."""

import time
from typing import ClassVar, Final

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from coddl.cli.poolview import nodes_lines, reason_of
from coddl.cli.top.chart import chart_lines
from coddl.cli.top.dialogs import LongList
from coddl.cli.top.job_list import JobList
from coddl.cli.top.lines import decision_lines, live_table, node_lines, pool_line
from coddl.cli.top.model import PoolModel

LOW: Final = 20  # lines: lower terminals show no chart
TALL: Final = 34  # higher ones show more of everything


class MainScreen(Screen[None]):
    """Shows a pool, and selects a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Details"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", show=False),
        Binding("a", "ended", show=False),
        Binding("n", "nodes", show=False),
        Binding("e", "decisions", show=False),
        Binding("escape", "clear", show=False),
    ]

    class Opened(Message):
        """A job is to be shown."""

        def __init__(self, job: int) -> None:
            super().__init__()
            self.job = job

    class EndedWanted(Message):
        """Jobs that have ended are to be shown, or no longer."""

    def __init__(self, model: PoolModel) -> None:
        super().__init__()
        self._model = model
        self._jobs = JobList()
        self._statics = {
            name: Static(id=name)
            for name in ("pool", "trouble", "chart", "nodes", "title", "reason", "decisions")
        }

    def compose(self) -> ComposeResult:
        for name in ("pool", "trouble", "chart", "nodes", "title"):
            yield self._statics[name]
        yield self._jobs
        yield self._statics["reason"]
        yield self._statics["decisions"]
        yield Input(placeholder="number, name, user, state, node", id="filter", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self._jobs.focus()
        self.refresh_pool()

    @property
    def selected(self) -> int | None:
        """The number of the selected job."""
        return self._jobs.selected

    def refresh_pool(self) -> None:
        """Show what the model knows now."""
        look, marks, (width, height) = self._model.look, self._model.marks, self.app.size
        self._show("trouble", [Text(self._model.status(time.time()))])
        if look is None:
            return
        extent = 0 if height < LOW else 1 if height < TALL else 2
        self._show("pool", [pool_line(look.pool, look.nodes, is_short=True)])
        self._show("chart", chart_lines(look.timeline, marks, width, 4 * extent))
        self._show("nodes", node_lines(look.nodes, marks, width, 1 + extent))
        self._show("decisions", decision_lines(look, 3 * extent))
        self.refresh_jobs()

    def refresh_jobs(self) -> None:
        """Show the jobs in the order and with the filter that hold now."""
        look, jobs = self._model.look, self._model.jobs()
        if look is None:
            return
        header, lines = live_table(jobs, self._model.marks, look.at_s, self.app.size.width)
        if start := header.plain.find(self._model.sort) + 1:
            header.stylize("underline", start - 1, start - 1 + len(self._model.sort))
        if not jobs:
            none = "no job matches the filter" if self._model.words else "no jobs"
            header = Text(none, style="dim")
        self._jobs.show(header, lines, [job["id"] for job in jobs])
        self._refresh_selected()

    @on(JobList.Selected)
    def _refresh_selected(self) -> None:
        job = self._model.job(self.selected)
        reason = Text() if job is None else Text(f"{job['name']}: ", style="bold")
        if job is not None:
            said = reason_of(job) or (job["trouble"] or {}).get("what", "")
            reason.append(said or job["state"], style="not bold")
        self._show("reason", [reason])
        self._show("title", [Text(self._model.list_title(self._jobs.place), style="dim")])
        self.app.refresh_bindings()

    def _show(self, name: str, lines: list[Text]) -> None:
        static = self._statics[name]
        static.display = any(line.plain for line in lines)
        static.update(Text("\n").join(lines))

    def on_resize(self, _event: events.Resize) -> None:
        self.refresh_pool()

    @on(JobList.Chosen)
    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def action_sort(self) -> None:
        self._model.sort_by_next()
        self._show_from_first()

    def action_reverse(self) -> None:
        self._model.is_reversed = not self._model.is_reversed
        self._show_from_first()

    def _show_from_first(self) -> None:
        self.refresh_jobs()
        self._jobs.select_first()
        self._refresh_selected()

    def action_ended(self) -> None:
        self.post_message(self.EndedWanted())

    def action_nodes(self) -> None:
        if self._model.look is not None:
            self.app.push_screen(LongList("nodes", nodes_lines(self._model.look.nodes)))

    def action_decisions(self) -> None:
        if (look := self._model.look) is not None:
            lines = decision_lines(look, len(look.decisions))[::-1]
            self.app.push_screen(LongList("decisions, the newest first", lines))

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    @on(Input.Changed, "#filter")
    def _narrow(self, event: Input.Changed) -> None:
        self._model.words = event.value.split()
        self.refresh_jobs()

    @on(Input.Submitted, "#filter")
    def _keep_filter(self) -> None:
        self.query_one("#filter").display = False
        self._jobs.focus()

    def action_clear(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._keep_filter()
