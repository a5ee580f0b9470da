"""The table of jobs: a line each, of which one is selected. Only what is on the screen is drawn."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

SELECTED = "reverse"


class JobList(Widget, can_focus=True):
    """Lines under a header, which stays; the arrows move the selection."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    class Selected(Message):
        """Another job is selected."""

    class Chosen(Message):
        """The selected job was clicked again."""

    def __init__(self) -> None:
        super().__init__()
        self._header = Text()
        self._lines: Sequence[Text] = ()
        self._ids: Sequence[int] = ()
        self._index = 0
        self._first = 0

    @property
    def selected(self) -> int | None:
        """The number of the selected job."""
        return self._ids[self._index] if self._ids else None

    @property
    def place(self) -> str:
        """Which of the lines is selected, of how many."""
        return f"{self._index + 1}/{len(self._ids)}" if self._ids else "0"

    def show(self, header: Text, lines: Sequence[Text], ids: Sequence[int]) -> None:
        """Take other lines; the selection stays with its job, else where it was."""
        before = self.selected
        self._header, self._lines, self._ids = header, lines, ids
        if before in ids:
            self._index = ids.index(before)
        self._keep_in_bounds()
        self.refresh()

    def select_first(self) -> None:
        """Select the first line: the order is another."""
        self._index = self._first = 0

    def render(self) -> Text:
        header = self._header.copy()
        header.truncate(self.size.width)
        shown = [header]
        for index in range(self._first, min(self._first + self._height, len(self._lines))):
            line = self._lines[index].copy()
            line.rstrip()
            line.truncate(self.size.width, overflow="ellipsis")
            if index == self._index:
                line.pad_right(self.size.width - line.cell_len)
                line.stylize(SELECTED)
            shown.append(line)
        return Text("\n").join(shown)

    def action_move(self, by: int) -> None:
        self._index += by
        self._keep_in_bounds()
        self.refresh()
        self.post_message(self.Selected())

    def action_move_page(self, by: int) -> None:
        self.action_move(by * self._height)

    def on_resize(self) -> None:
        self._keep_in_bounds()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_click(self, event: events.Click) -> None:
        index = self._first + event.y - 1
        if event.y < 1 or index >= len(self._ids):
            return
        if index == self._index:
            self.post_message(self.Chosen())
        self.action_move(index - self._index)

    @property
    def _height(self) -> int:
        return max(1, self.size.height - 1)

    def _keep_in_bounds(self) -> None:
        self._index = max(0, min(self._index, len(self._ids) - 1))
        highest = max(0, len(self._ids) - self._height)
        self._first = min(self._first, self._index, highest)
        self._first = max(self._first, self._index - self._height + 1)
