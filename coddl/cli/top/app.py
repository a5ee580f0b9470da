"""The program behind `coddl top`: passes the server's answers to the screens, and changes jobs."""

import threading
import time
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from coddl.cli.poolview import Answer
from coddl.cli.top.dialogs import Help, Question
from coddl.cli.top.feed import Connect, EventFollower, Poller, PoolReader
from coddl.cli.top.job_screen import JobScreen, job_screen
from coddl.cli.top.main_screen import MainScreen
from coddl.cli.top.messages import JobChanged, PoolTold, tell
from coddl.cli.top.model import ACTIONS, PoolModel
from coddl.core.errors import UserError

NEWS_S = 8.0  # for which a message is shown


class TopApp(App[None]):
    """Shows a pool until its user quits."""

    TITLE = "coddl top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "change('suspend')", "Suspend"),
        Binding("r", "change('resume')", "Resume"),
        Binding("c", "change('cancel')", "Cancel"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
    Screen Static { height: auto; }
    #pool, #title, #chart, #nodes, #decisions, .title {
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    #trouble { color: red; text-style: bold; }
    JobList { height: 1fr; min-height: 3; }
    #reason { height: 2; }
    #about { height: 3fr; }
    #log { height: 2fr; }
    Question, Help { align: center middle; }
    .box {
        width: auto; max-width: 78; height: auto; max-height: 100%;
        border: round; padding: 0 1;
    }
    .box Static { width: auto; }
    """

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the colours and the background of the user's terminal
        self._connect = connect
        self.model = PoolModel()
        self.main = MainScreen(self.model)
        self._reader = PoolReader()
        self._poller = Poller(connect, self._reader, lambda found: tell(self, PoolTold(found)))
        self._follower = EventFollower(connect, self._note_event)

    def get_default_screen(self) -> Screen[None]:
        return self.main

    def on_mount(self) -> None:
        self._poller.start()
        self._follower.start()

    def on_unmount(self) -> None:
        self._poller.stop()
        self._follower.stop()

    def on_pool_told(self, message: PoolTold) -> None:
        if isinstance(message.found, UserError):
            self.model.fail(message.found, time.time())
        elif news := self.model.take(message.found, time.time()):
            self.notify(news, timeout=NEWS_S)
        self.main.refresh_pool()

    def _note_event(self, event: Answer) -> None:
        """Look at once when something happens; called in the follower's thread."""
        if event["kind"] in ("Decided", "DecisionFailed"):
            self._reader.is_decided = True
        self._poller.poke()

    def on_main_screen_opened(self, message: MainScreen.Opened) -> None:
        self.push_screen(job_screen(message.job, self._connect))

    def on_main_screen_ended_wanted(self) -> None:
        self._reader.wants_ended = not self._reader.wants_ended
        self._poller.poke()

    def action_help(self) -> None:
        self.push_screen(Help())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer what can be done with the job that is selected or shown."""
        if action != "change":
            return True
        job = self._job()
        return self.model.may_change and job is not None and ACTIONS[str(parameters[0])].fits(job)

    def _job(self) -> Answer | None:
        match self.screen:
            case MainScreen() as main:
                return self.model.job(main.selected)
            case JobScreen() as one:
                return self.model.job(one.job)
            case _:
                return None

    def action_change(self, verb: str) -> None:
        job = self._job()
        if job is None:
            return

        def decide(is_wanted: bool | None) -> None:
            if is_wanted:
                threading.Thread(target=self._change, args=(verb, job["id"]), daemon=True).start()

        self.push_screen(Question(ACTIONS[verb].question(job)), decide)

    def _change(self, verb: str, job: int) -> None:
        """Ask the server for a change, in a thread."""
        found: Answer | UserError
        try:
            with self._connect() as client:
                found = client.post(f"/jobs/{job}:{verb}")
        except UserError as error:
            found = error
        tell(self, JobChanged(found))

    def on_job_changed(self, message: JobChanged) -> None:
        found = message.found
        if isinstance(found, UserError):
            self.notify(str(found), severity="error", timeout=NEWS_S, markup=False)
        else:
            news = f"{found['name']} (job {found['id']}): {found['state']}"
            self.notify(news, timeout=NEWS_S, markup=False)
        self._poller.poke()
