"""The page in a real browser: from a file, without a network, in light and dark, on a phone, without scripts, live.

Needs Chromium and its driver (Debian: chromium, chromium-driver). Without them the tests are skipped, unless the
environment variable CI says that they must run.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import bestpolicy as bp
from bestpolicy import report
from bestpolicy.report.live import LivePage, Server
from bestpolicy.study.store import Store
from tests.test_report_page import HOSTILE, advance, comparison, make_study, undrawn  # noqa: F401 (a fixture)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = not (CHROMIUM and DRIVER)
pytestmark = pytest.mark.skipif(
    MISSING and not os.environ.get("CI"), reason="no browser: install chromium and chromium-driver"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pages of a certified study, of a study and a comparison with hostile names, and of a comparison."""
    path = tmp_path_factory.mktemp("pages")
    make_study(path / "run.db", model="simplex-gap", epsilon=0.5)
    report.write_report(path / "run.db", path / "study.html", bounds=False)
    report.write_report(comparison(), path / "comparison.html")
    mdp = bp.instances.load("two-state")
    study = bp.Study(mdp.problem, epsilon=0.5, delta=0.1, store=path / "h.db", name=HOSTILE, origin={"model": HOSTILE})
    bp.drive(study, bp.ExactSimulator(mdp))
    report.write_report(path / "h.db", path / "hostile.html")
    return path


CHARTS = {
    "grid": ([(i, j) for i in range(3) for j in range(3)], ["up", "down", "left", "right"], None),
    "queues": ([(i, j) for i in range(4) for j in range(2)], ["serve the first", "serve the second"], None),
    "slices": ([(i, j, k) for i in range(3) for j in range(2) for k in range(2)], [0, 5, 10], None),
    "stock": (list(range(6)), [0, 5, 10], None),
    "season": ([f"stock {i}" for i in range(4)], [0, 1, 2], 3),
    "words": (["good", "worn", "broken"], ["run", "repair"], None),
}


@pytest.fixture(scope="module")
def charts(tmp_path_factory) -> Path:
    """Pages of policies of every kind of states."""
    path = tmp_path_factory.mktemp("charts")
    for name, (states, actions, horizon) in CHARTS.items():

        def step(state, action, rng, states=states):
            return float(rng.random() < 0.5), states[int(rng.integers(len(states)))]

        simulator = bp.NamedSimulator(
            step, states=states, actions=actions, discount=None if horizon else 0.5, horizon=horizon
        )
        result = bp.identify(simulator, epsilon=0.1, delta=0.1, algorithm="tight", seed=0, max_samples=300)
        report.write_report(result, path / f"{name}.html", bounds=False)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[webdriver.Chrome]:
    """One browser for all tests; its logs tell of every request and of every word on its console."""
    assert not MISSING, "CI is set, but there is no browser: install chromium and chromium-driver"
    downloads = tmp_path_factory.mktemp("downloads")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.downloads = downloads
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(autouse=True)
def fresh(request) -> None:
    """Every test begins with empty logs, scripts on, and a window of ordinary width."""
    if MISSING and not os.environ.get("CI"):
        return
    driver: webdriver.Chrome = request.getfixturevalue("browser")
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    driver.get("about:blank")
    show(driver, 1000, "light")
    driver.get_log("browser")
    driver.get_log("performance")


def show(browser: webdriver.Chrome, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def requests(browser: webdriver.Chrome) -> list[str]:
    """Addresses that the browser has asked for since last asked."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def column(browser: webdriver.Chrome, table: str, position: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(r => r.cells[arguments[1]].innerText)"
    )
    return browser.execute_script(script, table, position)


def fact(browser: webdriver.Chrome, label: str) -> str:
    path = f"//dt[text()='{label}']/following-sibling::dd[1]"
    return str(browser.find_element(By.XPATH, path).get_attribute("data-value"))


def pixels(browser: webdriver.Chrome) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("L"), dtype=float)


def wait(browser: webdriver.Chrome, condition: Callable[[webdriver.Chrome], object]) -> None:
    # An element may be gone while the page loads anew.
    WebDriverWait(browser, 300, poll_frequency=0.1, ignored_exceptions=(WebDriverException,)).until(condition)


@pytest.mark.parametrize("name", ["study", "comparison", "hostile"])
def test_opens_from_a_file_without_network_or_complaint(browser, folder, name):
    address = (folder / f"{name}.html").as_uri()
    browser.get(address)
    time.sleep(0.2)
    asked = [url for url in requests(browser) if not url.startswith("data:")]
    assert asked == [address]
    assert browser.get_log("browser") == []
    assert browser.find_element(By.TAG_NAME, "h1").text
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") >= 1


def test_numbers_are_those_of_the_file(browser, folder):
    browser.get((folder / "study.html").as_uri())
    with Store(folder / "run.db") as store:
        record = store.read(store.find(None))
    assert int(fact(browser, "Simulator calls")) == record.samples == record.result["samples"]
    assert float(fact(browser, "Certified ε")) == record.result["epsilon"]
    assert [int(action) for action in column(browser, ".policy", 1)] == record.result["policy"]
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert [int(c.replace(",", "")) for c in column(browser, ".checks", 0)] == [c["samples"] for c in record.checks]


def test_tables_sort_both_ways(browser, folder):
    browser.get((folder / "study.html").as_uri())
    heading = browser.find_elements(By.CSS_SELECTOR, ".policy th button")[2]
    before = column(browser, ".policy", 2)
    heading.click()
    up = [float(v) for v in column(browser, ".policy", 2)]
    assert up == sorted(up)
    assert sorted(map(float, before)) == up
    heading.click()
    assert [float(v) for v in column(browser, ".policy", 2)] == up[::-1]
    sorted_by = browser.find_elements(By.CSS_SELECTOR, ".policy th[aria-sort]")
    assert [head.get_attribute("aria-sort") for head in sorted_by] == ["descending"]


def test_sorting_by_numbers_that_are_written_with_commas_and_by_words(browser, folder):
    browser.get((folder / "comparison.html").as_uri())
    heads = {head.text.split("\n")[0].strip(): head for head in browser.find_elements(By.CSS_SELECTOR, ".summary th")}
    position = list(heads).index("median calls")
    heads["median calls"].find_element(By.TAG_NAME, "button").click()
    assert column(browser, ".summary", position) == ["200", "200", "20,000", "20,000"]
    heads["algorithm"].find_element(By.TAG_NAME, "button").click()
    assert column(browser, ".summary", 1) == ["gss", "gss", "tight", "tight"]


def test_the_policy_downloads_and_copies(browser, folder):
    browser.get((folder / "study.html").as_uri())
    browser.find_element(By.ID, "policy-csv").click()
    target = browser.downloads / "policy.csv"
    wait(browser, lambda _: target.exists() and target.stat().st_size > 0)
    lines = target.read_text().splitlines()
    assert lines[0].startswith("state,action,value")
    assert [line.split(",")[1] for line in lines[1:]] == column(browser, ".policy", 1)
    browser.execute_script(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve() }"
    )
    button = browser.find_element(By.CSS_SELECTOR, "button[data-copy=policy-csv]")
    button.click()
    wait(browser, lambda b: b.execute_script("return window.copied"))
    assert browser.execute_script("return window.copied") == target.read_text()
    assert button.text == "Copied"


@pytest.mark.parametrize("name", ["study", "comparison"])
@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (1000, "dark"), (360, "light"), (360, "dark")])
def test_it_looks_like_something_and_does_not_scroll_sideways(browser, folder, name, width, scheme):
    show(browser, width, scheme)
    browser.get((folder / f"{name}.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    hidden = "return [...document.querySelectorAll('figure .scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.execute_script(hidden) == 0  # all of every picture can be seen
    browser.execute_script("document.querySelector('figure').scrollIntoView()")
    picture = pixels(browser)
    background = np.median(picture)
    assert background > 240 if scheme == "light" else background < 40
    different = np.abs(picture - background) > 60
    assert 0.002 < different.mean() < 0.5
    assert different.any(axis=1).mean() > 0.1  # over the whole page, not one line of it


@pytest.mark.parametrize("name", CHARTS)
def test_charts_fit_a_phone_and_can_be_read_there(browser, charts, name):
    show(browser, 390, "light")
    browser.get((charts / f"{name}.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    wide, small, outside = browser.execute_script("""
        const texts = [...document.querySelectorAll('svg text')].filter(t => t.textContent.trim());
        const place = (t) => [t.getBoundingClientRect(), t.ownerSVGElement.getBoundingClientRect()];
        return [
          [...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().right > 390).length,
          texts.filter(t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a < 5.5)
            .map(t => t.textContent),
          texts.filter(t => { const [own, all] = place(t);
            return own.left < all.left - 2 || own.right > all.right + 2; }).map(t => t.textContent),
        ]""")
    assert wide == 0
    assert small == []  # pixels of a phone, of which three or so are one
    assert outside == []


def test_text_in_pictures_has_the_colour_of_the_page_and_stays_inside(browser, folder):
    show(browser, 1000, "dark")
    browser.get((folder / "study.html").as_uri())
    colours = browser.execute_script(
        "return [...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill)"
    )
    body = browser.execute_script("return getComputedStyle(document.body).color")
    assert len(colours) > 10
    assert set(colours) <= {body, "rgb(255, 255, 255)", "rgb(0, 0, 0)"}
    outside = browser.execute_script("""
        return [...document.querySelectorAll('svg text')].filter(t => {
          const own = t.getBoundingClientRect(), all = t.ownerSVGElement.getBoundingClientRect();
          return own.left < all.left - 2 || own.right > all.right + 2
            || own.top < all.top - 2 || own.bottom > all.bottom + 2;
        }).map(t => t.textContent)""")
    assert outside == []


def test_everything_is_there_without_scripts(browser, folder):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get((folder / "study.html").as_uri())
    assert browser.find_elements(By.CSS_SELECTOR, "th button") == []  # no script has run
    assert not browser.find_element(By.CSS_SELECTOR, "button[data-copy]").is_displayed()
    assert browser.find_element(By.CSS_SELECTOR, "figure svg").is_displayed()
    assert len(browser.find_elements(By.CSS_SELECTOR, ".policy tbody tr")) == 8
    link = browser.find_element(By.ID, "policy-csv").get_attribute("href")
    assert base64.b64decode(link.split(",")[1]).decode().startswith("state,action,value")
    checks = browser.find_elements(By.TAG_NAME, "summary")[-1]
    assert not browser.find_element(By.CSS_SELECTOR, ".checks").is_displayed()
    checks.click()
    assert browser.find_element(By.CSS_SELECTOR, ".checks").is_displayed()


def test_hostile_names_do_nothing(browser, folder):
    browser.get((folder / "hostile.html").as_uri())
    time.sleep(0.2)
    assert browser.title != "owned"
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, ".kicker").text
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_page_could_not_reach_the_network_if_it_tried(browser, folder):
    browser.get((folder / "study.html").as_uri())
    reached = browser.execute_async_script("""
        const done = arguments[arguments.length - 1];
        fetch('http://127.0.0.1:9/').then(() => done('yes'), error => done(String(error)));""")
    assert reached != "yes"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


@pytest.mark.usefixtures("undrawn")
def test_a_live_page_follows_the_run(browser, tmp_path):
    path = tmp_path / "run.db"
    make_study(path, steps=0, epsilon=0.01)
    with Server(LivePage(path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            browser.get(server.url)
            assert "has just begun" in browser.find_element(By.TAG_NAME, "h1").text
            wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".live").text.startswith("Begun "))
            browser.execute_script("window.since = 'the page was opened'")
            study = bp.Study.resume(path)
            advance(study, 5)
            samples = str(study.samples)
            wait(browser, lambda b: fact(b, "Simulator calls") == samples)
            assert len(column(browser, ".checks", 0)) == len(study.checks)
            browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
            browser.execute_script("document.querySelector('.checks th button').click()")
            study.stop()
            wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".state").text == "interrupted")
            assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
            wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".live").text.startswith("The run is over."))
            sorted_by = browser.find_elements(By.CSS_SELECTOR, ".checks th[aria-sort]")
            assert [head.get_attribute("aria-sort") for head in sorted_by] == ["ascending"]
            show(browser, 390, "light")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
            assert browser.execute_script("return window.since") == "the page was opened"  # it was never loaded anew
            assert {url.split("/")[2] for url in requests(browser) if url.startswith("http")} == {
                server.url.split("/")[2]
            }
            assert browser.get_log("browser") == []
        finally:
            server.shutdown()
            thread.join()
    wait(browser, lambda b: "has stopped" in b.find_element(By.CSS_SELECTOR, ".live").text)
