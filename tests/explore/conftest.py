import json
from pathlib import Path

import pytest

from helpers.browser import CHROMIUM, Browser

PAGE = Path(__file__).parents[2] / "docs" / "explore.html"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def page():
    return PAGE


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install the package chromium")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def call(browser, page):
    """Call a function of the page's script "rule" with arguments that JSON has."""
    browser.open(page)

    def call(expression, *arguments):
        # Python's json writes every float so that it is read back exactly, and so does JavaScript's.
        text = browser.run(f"JSON.stringify(({expression})(...{json.dumps(arguments)}))")
        return json.loads(text, parse_int=float)

    return call
