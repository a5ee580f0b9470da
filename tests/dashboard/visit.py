"""A visit to a dashboard with a browser, which notes what goes wrong and where requests go."""

from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Locator, Page, expect

PHONE: Final = (360, 740)  # pixels
DESK: Final = (1440, 900)


class Visit:
    """Someone who has signed in; nothing may have gone wrong at the end."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        token: str,
        size: tuple[int, int] = DESK,
        *,
        has_touch: bool = False,
    ) -> None:
        self.url, self._token = url, token
        width, height = size
        self._context = browser.new_context(
            viewport={"width": width, "height": height}, has_touch=has_touch, is_mobile=has_touch
        )
        self.page: Page = self._context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.errors.append(message.text)
                if "Content Security Policy" in message.text
                else None
            ),
        )

    def __enter__(self) -> Self:
        self.page.goto(self.url)
        self.page.get_by_label("Token").fill(self._token)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("link", name="Nodes")).to_be_visible()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.close()
        if kind is None:
            assert self.errors == []
            foreign = {url for url in self.requests if not url.startswith(f"{self.url}/")}
            assert foreign == set(), "no request leaves the server"
            assert not any(self._token in url for url in self.requests)

    def go(self, where: str) -> None:
        """Open a page by the part of its address after #."""
        self.page.goto(f"{self.url}/#/{where}")

    def region(self, name: str) -> Locator:
        return self.page.get_by_role("region", name=name, exact=True)

    def row(self, region: str, job: str) -> Locator:
        """Give a job's row in a table."""
        cell = self.page.get_by_role("link", name=job, exact=True)
        return self.region(region).get_by_role("row").filter(has=cell)

    def is_too_wide(self) -> bool:
        """Tell whether the page must be scrolled sideways."""
        script = "document.documentElement.scrollWidth > innerWidth"
        return bool(self.page.evaluate(script))

    @property
    def hosts(self) -> set[str]:
        return {urlsplit(url).netloc for url in self.requests}
