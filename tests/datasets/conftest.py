"""What the tests of the readers share: files to read, and checks of a reader."""

import gzip

import pytest


@pytest.fixture
def write(tmp_path):
    """write(name, content) -> the path of a new file; gzipped where its name says so."""

    def make(name, content):
        raw = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") and isinstance(content, str) else raw)
        return path

    return make


@pytest.fixture
def check_reads(write):
    """check_reads(reader, name, content, expected): plain, gzipped and with a byte order mark."""

    def check(reader, name, content, expected):
        assert reader(write(name, content)) == expected
        assert reader(write(name + ".gz", content)) == expected
        assert reader(write("b" + name, b"\xef\xbb\xbf" + content.encode())) == expected

    return check


@pytest.fixture
def check_fails(write):
    """check_fails(reader, content, line, message): the error names the file and the line."""

    def check(reader, content, line, message):
        path = write("some.file", content)
        with pytest.raises(ValueError, match=f"some.file, line {line}: .*{message}"):
            reader(path)

    return check


@pytest.fixture(scope="session")
def tasks(data):
    """The folder of the real files. Their counts are those that publishers and README files give."""
    if not (data / "tasks").is_dir():
        pytest.skip(f"no folder {data / 'tasks'}: set ELMOKIT_DATA")
    return data / "tasks"
