"""Optional dependencies: one that is missing names the pip command that installs it."""

import json
import sys

import pytest

from elmokit.extras import require


def test_a_module_that_is_installed_is_imported():
    assert require("json", extra="none") is json
    assert require("json.decoder", extra="none") is json.decoder


@pytest.mark.parametrize("module", ["pyarrow", "pyarrow.parquet"])
def test_a_module_that_is_missing_names_the_command_that_installs_it(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(ImportError, match=r'pyarrow is not installed: pip install "elmokit\[parquet\]"'):
        require(module, extra="parquet")
