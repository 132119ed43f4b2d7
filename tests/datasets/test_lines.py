"""What all readers promise: a file that is missing, empty or broken is named."""

import gzip

import pytest

from elmokit import datasets

READERS = [getattr(datasets, name) for name in datasets.__all__ if name.startswith("read_")]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_file_that_is_missing_empty_or_broken_is_named(write, tmp_path, reader):
    with pytest.raises(ValueError, match=r"none\.(data|gold)\.xml: no such file"):
        reader(tmp_path / "none.data.xml")
    write("a.gold.txt", "")
    with pytest.raises(ValueError, match=r"a\.data\.txt: no examples"):
        reader(write("a.data.txt", " \n\n"))
    with pytest.raises(ValueError, match="cannot be read"):
        reader(write("b.gz", gzip.compress(b"x" * 9999)[:-12]))
    with pytest.raises(ValueError, match="cannot be read"):
        reader(tmp_path)
