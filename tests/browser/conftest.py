"""A browser at the running service; a test that cannot have one says why."""

from __future__ import annotations

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip


def missing(reason: str) -> None:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("LANEWISE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    """Chromium or Chrome from the system, without a window.

    Not for the session: playwright holds an event loop, and async tests could not run beside it.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        missing(f"no browser on PATH; looked for {', '.join(BROWSERS)}")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def page(browser, running_service):
    """The page of the service, with its key; a script error fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "console",
        lambda m: errors.append(m.text) if "Content Security Policy" in m.text else None,
    )
    opened.goto(f"{running_service.url}/#key={running_service.key}")
    opened.wait_for_selector(".ready.good", timeout=60_000)
    yield opened
    context.close()
    assert errors == []
