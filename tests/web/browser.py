"""A real browser without a window, and a site that serves it from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.control.world import World
from tests.web.site import TOKEN, Site

T = TypeVar("T")
DRIVER = "/usr/bin/chromedriver"
SIZE = (1280, 900)


@contextmanager
def chromium(*, dark: bool = False) -> Iterator[webdriver.Chrome]:
    """Debian's chromium. Nobody sees its sandbox: tests may run as root."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    width, height = SIZE
    more = ["--blink-settings=preferredColorScheme=0"] if dark else []
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *more):
        options.add_argument(each)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


class Served:
    """A site on an event loop of its own thread."""

    def __init__(self, world: World) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self.site = self.do(lambda: Site(self._stack, world))
        self.reopen()

    def do(self, act: Callable[[], T]) -> T:
        """Run a function in the loop's thread."""

        async def run() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def reopen(self) -> None:
        """The supervisor is there."""
        asyncio.run_coroutine_threadsafe(self.site.open(), self._loop).result(60)

    def away(self) -> None:
        """The supervisor is away."""
        asyncio.run_coroutine_threadsafe(self.site.close(), self._loop).result(60)

    def close(self) -> None:
        """End all."""
        self.away()
        self.do(lambda: [each.cancel() for each in asyncio.all_tasks() if each is not asyncio.current_task()])
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), self._loop).result(60)  # sockets close
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def url(self, path: str = "/") -> str:
        """An address that lets the browser in."""
        return self.site.url(f"{path}{'&' if '?' in path else '?'}token={TOKEN}")
