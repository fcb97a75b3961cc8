"""The page in a real browser: every view and state, nothing that should not be there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from supervisor.contract import keys
from supervisor.contract.desired import JobPhase, LeaderRecord
from supervisor.contract.incident import Event
from supervisor.contract.observed import Gpu
from supervisor.control.decide.plan import put
from tests.control.world import World
from tests.web.browser import SIZE, Served, chromium
from tests.web.site import HOST, START_MS

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
VIEWS = ("/", "/jobs", "/jobs/digits", "/nodes/n0", "/events", "/jobs/digits/logs/worker:0", "/jobs/none")
BUDGET = 150 * 1024
PHONE = 390


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def served(browser: Chrome) -> Iterator[Served]:
    world = World()
    world.wall_ms = START_MS
    made = Served(world.start())
    try:
        yield made
    finally:
        browser.get("about:blank")
        made.close()


def text_of(browser: Chrome, selector: str = "main") -> str:
    found: str = browser.execute_script(
        "return document.querySelector(arguments[0])?.innerText ?? ''", selector
    )
    return found


def until(condition: Callable[[], object], what: str, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def until_told(browser: Chrome, text: str, selector: str = "main") -> None:
    until(lambda: text in text_of(browser, selector), f"{text!r} in {text_of(browser, selector)!r}")


def obstacles(browser: Chrome) -> list[str]:
    """What axe finds on the page."""
    browser.execute_script((files("axe_core_python") / "axe.min.js").read_text())
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]


def log_of(browser: Chrome, kind: str) -> list[dict[str, str]]:
    """What the browser has noted since the last call."""
    found: list[dict[str, str]] = browser.execute("getLog", {"type": kind})["value"]
    return found


def requests(browser: Chrome) -> list[str]:
    """The addresses that were asked for since the last call."""
    sent = (json.loads(each["message"])["message"] for each in log_of(browser, "performance"))
    return [
        each["params"]["request"]["url"] for each in sent if each["method"] == "Network.requestWillBeSent"
    ]


def busy(served: Served) -> None:
    site, world = served.site, served.site.world
    world.see_gpus("n0", *(Gpu(f"GPU-{index}", index, "H200", 1 << 37) for index in range(4)))
    for step in (100, 200, 300):
        world.commit(1, step)
        site.tick(500)
    world.end_task("worker.0", signal=9)
    site.tick(5_000)
    world.end_task("chief.0", code=1, tail=HOSTILE)
    world.write(put(keys.event(900), Event(START_MS, "test", "digits", HOSTILE)))
    site.tick(5_000)


def plotted(browser: Chrome, served: Served) -> bool:
    """Time goes by, and there is a plot. Samples of one moment make none."""
    served.do(lambda: served.site.tick(100))
    return bool(browser.find_elements(By.CSS_SELECTOR, "#plot-steps canvas"))


def test_every_view_is_sound(browser: Chrome, served: Served) -> None:
    """Small, readable by everybody, from here alone, and whatever a program writes stays text."""
    served.do(lambda: busy(served))
    requests(browser)
    for path in VIEWS:
        browser.get(served.url(path))
        until(lambda: browser.execute_script("return document.readyState") == "complete", path)
        if path in ("/", "/jobs", "/jobs/digits", "/events"):
            until_told(browser, "live", "#link")
        sizes = browser.execute_script(
            "return performance.getEntries().filter((e) => e.transferSize).map((e) => e.transferSize)"
        )
        assert 0 < sum(sizes) < BUDGET, path
        assert obstacles(browser) == [], path
        assert {url.split("/")[2] for url in requests(browser) if "://" in url} == {
            f"{HOST}:{served.site.port}"
        }
        assert "demo" in browser.title, path
        assert browser.execute_script("return document.images.length") == 0, path
        refused = [each["message"] for each in log_of(browser, "browser") if "favicon" not in each["message"]]
        assert [each for each in refused if "404" not in each] == [], path
    browser.get(served.url("/jobs/digits"))
    assert "onerror" in text_of(browser, "#part-events")
    until(lambda: plotted(browser, served), "a plot")


@contextmanager
def seen(browser: Chrome, *, width: int, dark: bool) -> Iterator[None]:
    """On a screen of this width, with these colours."""
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == PHONE}
    colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (PHONE, True),
        pytest.param(PHONE, False, marks=pytest.mark.slow),
        pytest.param(SIZE[0], True, marks=pytest.mark.slow),
    ],
)
def test_every_view_is_readable_in_the_dark_and_on_a_phone(
    browser: Chrome, served: Served, width: int, dark: bool
) -> None:
    served.do(lambda: busy(served))
    with seen(browser, width=width, dark=dark):
        for path in VIEWS:
            browser.get(served.url(path))
            until(lambda: browser.execute_script("return document.readyState") == "complete", path)
            background, widest = browser.execute_script(
                "const all = document.documentElement;"
                "return [getComputedStyle(document.body).backgroundColor, all.scrollWidth]"
            )
            assert (max(map(int, re.findall(r"\d+", background)[:3])) < 128) is dark, background
            assert widest <= width, path
            assert obstacles(browser) == [], path


def test_a_page_follows_a_job_through_its_states(browser: Chrome, served: Served) -> None:
    site, world = served.site, served.site.world
    browser.get(served.url("/jobs/digits"))
    until_told(browser, "Nothing has been saved yet.")
    served.do(lambda: world.commit(1, 100))
    served.do(lambda: site.tick(100))
    until_told(browser, "g1-s100", "#part-state")
    browser.find_element(By.CSS_SELECTOR, "#part-checkpoints summary").click()
    lost = world.node_of("worker.1")
    served.do(lambda: world.switch_off(lost))
    served.do(lambda: site.tick(2_000))
    until_told(browser, "recovering", "#part-state")
    served.do(lambda: site.tick(20_000))
    until_told(browser, f"on {lost} lost its node.", "#part-story")
    until_told(browser, "running", "#part-state")
    assert "Checkpoint g1-s100 was in its checkpoint directory, but it began at step 5" in text_of(
        browser, "#part-story"
    )
    assert browser.find_element(By.CSS_SELECTOR, "#part-checkpoints details").get_attribute("open"), (
        "it stays open"
    )
    assert browser.find_elements(By.CSS_SELECTOR, ".timeline rect.ready")
    switch = world.switch()

    def fail() -> None:
        world.write(
            put(keys.switch("digits"), replace(switch, phase=JobPhase.FAILED, reason="budget used up"))
        )
        site.show()

    served.do(fail)
    until_told(browser, "failed", "#part-state")
    until_told(browser, "budget used up", "#part-state")


def test_a_page_goes_with_the_leader_and_outlives_a_supervisor(browser: Chrome, served: Served) -> None:
    world = World()
    world.wall_ms = START_MS
    other = Served(world.start())
    try:
        browser.get(served.url("/jobs?q=dig"))
        until_told(browser, "live", "#link")
        served.away()
        until_told(browser, "no answer since", "#link")
        served.reopen()
        until_told(browser, "live", "#link")
        served.do(lambda: served.site.follow(None))
        until_told(browser, "no leader since", "#link")
        leader = LeaderRecord("s1", "unix:/s1", 2, other.site.url("").rstrip("/"))
        served.do(lambda: served.site.follow(leader))
        until(lambda: browser.current_url.startswith(leader.http), "it is the leader's page now")
        until_told(browser, "live", "#link")
        assert browser.current_url == f"{leader.http}/jobs?q=dig"
    finally:
        browser.get("about:blank")
        other.close()


def test_an_empty_cluster_and_a_thousand_jobs(browser: Chrome, served: Served) -> None:
    site = served.site
    served.do(lambda: site.add_jobs(1_000))
    browser.get(served.url("/jobs"))
    until_told(browser, "1,001 jobs")
    box = browser.find_element(By.ID, "q")
    box.send_keys("job-0999\n")
    until_told(browser, "1 job of 1001")
    assert obstacles(browser) == []
    picture = site.service.picture
    assert picture is not None
    site.service.picture = replace(picture, jobs={}, nodes={}, events=())
    for path, told in (
        ("/", "No agent has registered yet."),
        ("/jobs", "No job has been submitted"),
        ("/events", "Nothing has happened yet."),
    ):
        browser.get(served.url(path))
        until_told(browser, told)
        assert obstacles(browser) == [], path
