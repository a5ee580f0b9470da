"""The second screen of `coddl top`: one job, why it is where it is, and what it prints."""

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from coddl.cli.poolview import explain_lines, fields, job_fields, log_line, story_lines
from coddl.cli.top.feed import Connect, JobLook, Poller, read_job
from coddl.cli.top.messages import JobTold, tell
from coddl.core.errors import UserError


class JobScreen(Screen[None]):
    """Explains a job above, and shows its output below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        Binding("tab", "app.focus_next", "Other part"),
    ]

    def __init__(self, job: int, poller: Callable[["JobScreen"], Poller[JobLook]]) -> None:
        super().__init__()
        self.job = job
        self._poller = poller(self)
        self._title, self._about, self._log = Static(classes="title"), Static(), Static()
        self._log_view = VerticalScroll(self._log, id="log")

    def compose(self) -> ComposeResult:
        yield self._title
        yield VerticalScroll(self._about, id="about")
        yield Static(Text("output, the last lines", style="bold"), classes="rule")
        yield self._log_view
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._title.update(Text(f"job {self.job}"))
        self.query_one("#about").focus()
        self._poller.start()

    def on_unmount(self) -> None:
        self._poller.stop()

    def on_job_told(self, message: JobTold) -> None:
        found = message.found
        if isinstance(found, UserError):
            self._title.update(Text(f"job {self.job}: {found.what}, trying again", style="red"))
            return
        title, *lines = job_lines(found)
        self._title.update(title)
        self._about.update(Text("\n").join(lines))
        was_at_end = self._log_view.is_vertical_scroll_end
        printed = [Text(log_line(line)) for line in found.log]
        self._log.update(Text("\n").join(printed) or Text("nothing yet", style="dim"))
        if was_at_end:
            self._log_view.scroll_end(animate=False)


def job_lines(look: JobLook) -> list[Text]:
    """Return the output of `coddl explain` and `coddl describe` for a job, the title first."""
    told = look.explained
    about = [pair for pair in job_fields(told["job"], look.at_s) if pair[0] != "reason"]
    history = story_lines(told["story"][::-1], look.at_s)
    return [
        *explain_lines({**told, "story": []}, look.at_s),
        Text(),
        *fields(about),
        Text(),
        *history,
    ]


def job_screen(job: int, connect: Connect) -> JobScreen:
    """Make the screen of a job, which asks the server for itself."""

    def poller(screen: JobScreen) -> Poller[JobLook]:
        return Poller(
            connect,
            lambda client: read_job(client, job),
            lambda found: tell(screen, JobTold(found)),
        )

    return JobScreen(job, poller)
