"""What the tests of the explorer share: links to its views, and the numbers of its tables."""

from urllib.parse import urlencode

import numpy as np


def view(panel, **fields):
    """The part of an address that restores a view."""
    return f"#{panel}?{urlencode(fields)}"


def numbers(page, caption):
    """The numbers of a table of similarities."""
    rows = page.locator(f"#context table:has(caption:text-is('{caption}')) tbody tr")
    return np.array([[float(cell) for cell in row.split("\t")[1:]] for row in rows.all_inner_texts()])
