"""The page in a headless Chromium: filter, sort, light and dark, no error, no request, and a short loading time."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_amp.record import Record, difference, read_record
from pytest_amp.report.html import of_difference
from tests.project import ROOT
from tests.report.records import HOSTILE, record

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None or importlib.util.find_spec("playwright") is None,
    reason="needs playwright and a Chromium: pip install playwright, apt install chromium",
)
#: Seconds in which a page of 5000 observations has to load.
SOON = 1.0


@dataclass
class Seen:
    """Opened page, with its console messages and its requests."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(of_difference(difference(record("2.13.0"), record("2.14.1", seed=1))), encoding="utf-8")
    return path


@pytest.fixture
def seen(browser: Any, file: Path) -> Iterator[Seen]:
    opened = _opened(browser, file)
    yield opened
    assert opened.said == []
    assert opened.asked == [file.as_uri()]
    opened.page.close()


def _opened(browser: Any, file: Path, **options: str) -> Seen:
    opened = Seen(browser.new_page(viewport={"width": 1200, "height": 900}, **options))
    opened.page.on("console", lambda message: opened.said.append(message.text))
    opened.page.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.page.on("request", lambda request: opened.asked.append(request.url))
    opened.page.on("dialog", lambda dialog: opened.said.append(dialog.message))
    opened.page.goto(file.as_uri())
    return opened


def column(page: Any, number: int) -> list[str]:
    """Return the texts of a column of the filterable table."""
    texts: list[str] = page.locator(f"#table tbody td:nth-child({number})").all_inner_texts()
    return texts


def test_page_loads_without_errors_or_requests(seen: Seen) -> None:
    assert seen.page.title() == "torch 2.13.0 (2026-11-28) → torch 2.14.1 (2026-11-28)"
    rows = seen.page.locator("#table tbody tr").count()
    assert rows > 5
    assert seen.page.locator("#count").inner_text() == f"{rows} of {rows} shown, {rows} in all"
    assert seen.page.locator("svg").count() == 4
    assert HOSTILE in seen.page.locator("details", has_text="tests that fail now").inner_text()


def test_filters_select_rows(seen: Seen) -> None:
    page = seen.page
    page.select_option("#verdict", "changed")
    assert set(column(page, 1)) == {"changed"}
    page.select_option("#verdict", "")
    page.select_option("#family", "rules")
    assert set(column(page, 2)) == {"rules"}
    page.select_option("#target", "cuda-fp16")
    assert (set(column(page, 2)), set(column(page, 3))) == ({"rules"}, {"cuda-fp16"})
    page.select_option("#family", "")
    page.select_option("#target", "")
    page.fill("#query", "SPEEDUP transformer")
    assert column(page, 4) == ["transformer/over-tf32/device/speedup"]
    page.fill("#query", "nothing has this")
    assert column(page, 4) == []
    assert seen.page.locator("#count").inner_text().startswith("0 of 0 shown")
    page.press("#query", "Enter")  # a form, which must not be sent
    page.fill("#query", "")
    assert len(column(page, 4)) > 5


def test_headers_sort_rows(seen: Seen) -> None:
    page = seen.page
    page.click("#table thead button:text-is('name')")
    names = column(page, 4)
    assert names == sorted(names)
    page.click("#table thead button:text-is('name')")
    assert column(page, 4) == names[::-1]
    assert page.locator("#table thead th[aria-sort=descending]").inner_text().startswith("name")
    page.click("#table thead button:text-is('of allowed')")
    shares = [float(text.removesuffix(" %")) for text in column(page, 8) if text]
    assert len(shares) > 1
    assert shares == sorted(shares, reverse=True)
    assert "" in column(page, 8)[len(shares) :]
    page.click("#table thead button:text-is('verdict')")
    assert column(page, 1)[0] == "failed"
    assert column(page, 1)[-1] == "improved"


def test_empty_column_is_omitted(browser: Any, tmp_path: Path, seen: Seen) -> None:
    """Omit the column ``before`` in a run without a baseline, and the reason if none is known."""
    head = "#table thead th"
    assert seen.page.locator(head).all_inner_texts()[5:] == ["now", "before", "of allowed"]
    path, new = tmp_path / "new.html", record("2.14.1", size=20)
    path.write_text(of_difference(difference(Record(new.observations[:4], new.provenance), new)), encoding="utf-8")
    page = _opened(browser, path).page
    assert page.locator(head).all_inner_texts()[5:] == ["now", "of allowed"]
    page.click("#table thead button:text-is('of allowed')")
    shares = [text for text in column(page, 7) if text]
    assert len(shares) > 1
    assert page.locator(f"{head}[aria-sort=descending]").inner_text().startswith("of allowed")
    page.close()


def test_table_fits_without_scrolling_sideways(seen: Seen) -> None:
    """Show every column in full at the width of a desktop."""
    box = seen.page.locator("#all .scroll")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_button_toggles_light_and_dark(browser: Any, file: Path) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        page = _opened(browser, file, color_scheme=scheme).page
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(ground)
        page.click("#theme")
        grounds[scheme] = (before, page.evaluate(ground))
        page.close()
    assert grounds["light"] == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
    assert grounds["dark"] == ("rgb(13, 17, 23)", "rgb(255, 255, 255)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(browser: Any, file: Path, scheme: str) -> None:
    """Require a contrast of 4.5 to 1 with the background (WCAG 2.1, 1.4.3), for the colours of verdicts, too."""
    page = _opened(browser, file, color_scheme=scheme).page
    low = page.evaluate("""() => {
      const number = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
      const light = (rgb) => rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const ground = light(number(getComputedStyle(document.body).backgroundColor));
      const found = {};
      for (const each of document.querySelectorAll("p, li, h1, h2, td, th, summary, .badge, svg text:not(.inside)")) {
        const style = getComputedStyle(each);
        const ink = light(number(each instanceof SVGElement ? style.fill : style.color));
        const contrast = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
        if (contrast < 4.5) found[each.className.baseVal || each.className || each.tagName] = contrast;
      }
      return found;
    }""")
    assert low == {}
    page.close()


def test_page_fits_the_width_of_a_phone(browser: Any, file: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


@pytest.mark.parametrize("width", [1280, 500])
def test_columns_of_an_upgrade_are_not_cut_off(browser: Any, width: int, tmp_path: Path) -> None:
    """Use the records of the docs: each box shows its rows without scrolling sideways, and each issue is a link."""
    before, after = (
        read_record(ROOT / "docs" / "lab" / "examples" / f"torch-{release}.json.gz") for release in ("2.13", "2.14")
    )
    upgrade = tmp_path / "upgrade.html"
    upgrade.write_text(of_difference(difference(before, after)), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(upgrade.as_uri())
    boxes = page.locator("details[open] .scroll")
    assert boxes.count() > 2
    assert boxes.evaluate_all("boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    observed = boxes.evaluate_all("boxes => boxes.map(box => Math.min(box.scrollHeight, 700) <= box.clientHeight)")
    assert all(observed)
    if width > 1000:
        assert page.locator("#all .scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
    for place in ("details[open]", "#table"):
        link = page.locator(f"{place} a", has_text="pytorch/pytorch#191142").first
        assert link.get_attribute("href") == "https://github.com/pytorch/pytorch/issues/191142"
    page.close()


def test_page_of_5000_observations_loads_in_time(browser: Any, tmp_path: Path) -> None:
    """Use new observations, each of which is a row, and ignore the first load of the browser."""
    wide = record("2.14.1", size=5000)
    large = of_difference(difference(Record(wide.observations[:4], wide.provenance), wide))
    path = tmp_path / "large.html"
    path.write_text(large, encoding="utf-8")
    took = []
    for _ in range(3):
        page = browser.new_page()
        started = time.monotonic()
        page.goto(path.as_uri())
        page.wait_for_selector("#table tbody tr")
        took.append(time.monotonic() - started)
        assert page.locator("#count").inner_text().endswith(" in all")
        shown = int(page.locator("#count").inner_text().split()[-3])
        page.close()
    assert shown > 4900
    assert min(took) < SOON, took


def test_button_shows_more_rows(browser: Any, tmp_path: Path) -> None:
    wide = record("2.14.1", size=1000)
    first = Record(wide.observations[:4], wide.provenance)
    path = tmp_path / "wide.html"
    path.write_text(of_difference(difference(first, wide)), encoding="utf-8")
    page = _opened(browser, path).page
    assert len(column(page, 1)) == 200
    page.click("#more")
    assert 800 < len(column(page, 1)) < 1200
    assert page.locator("#more").is_hidden()
    page.close()
