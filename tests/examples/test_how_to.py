"""The examples of the how-to guides, and the output that they show."""

import pytest

from support.pages import check_examples, pages_with_examples


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", pages_with_examples(how_to=True), ids=str)
def test_examples_run_and_print_what_the_page_shows(page, tmp_path):
    check_examples(page, tmp_path)
