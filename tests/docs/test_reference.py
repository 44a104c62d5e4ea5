"""Generated pages of the reference agree with the package."""

from __future__ import annotations

import pytest

from tests.docs.reference import FOLDER, PAGES


@pytest.mark.parametrize("page", PAGES)
def test_reference_page_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == PAGES[page](), "python -m tests.docs.reference"
