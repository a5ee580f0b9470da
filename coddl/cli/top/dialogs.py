"""Screens that `coddl top` shows above the others: a question, keys, long lists."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from coddl.cli.top.chart import FREE, OTHERS

CLOSE: list[BindingType] = [Binding("escape,q", "app.pop_screen", "Back")]


class Question(ModalScreen[bool]):
    """Asks before a job is changed; only `y` is a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            yield Static(Text("\ny  yes    n  no", style="bold"))


class Help(ModalScreen[None]):
    """Shows the keys, and how to read the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "Back")
    ]
    TEXT = f"""\
↑ ↓ PgUp PgDn Home End   select a job
Enter      the job: reason, speeds, history, output
/          filter: words in number, name, user, state, node, code
Esc        all jobs again
s  S       sort by the next column; in reverse order
a          show jobs that have ended, too
p  r  c    suspend, resume, cancel the selected job
n  e       all nodes; decisions
q          quit

The chart shows which jobs held the GPUs in the last minutes: a letter and
a colour per job, the same in the table and the nodes.
{FREE[0]} is a free GPU, {OTHERS[0]} one of a job without a letter of its own,
x one that another process uses."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box"):
            yield Static(Text(self.TEXT))


class LongList(Screen[None]):
    """Lines to scroll through."""

    BINDINGS: ClassVar[list[BindingType]] = CLOSE

    def __init__(self, title: str, lines: Sequence[Text]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        yield Static(Text(self._title), classes="title")
        with VerticalScroll():
            yield Static(Text("\n").join(self._lines))
        yield Footer(show_command_palette=False)
