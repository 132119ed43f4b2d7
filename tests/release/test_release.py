"""What PyPI and GitHub show of a release: one version everywhere, and links that lead somewhere."""

import re
from pathlib import Path

import pytest

import elmokit

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/elmokit/elmokit"


@pytest.fixture(scope="module")
def metadata():
    """The metadata of the package as the build writes it."""
    pytest.importorskip("hatch_fancy_pypi_readme")
    from hatchling.metadata.core import ProjectMetadata
    from hatchling.plugin.manager import PluginManager

    return ProjectMetadata(str(ROOT), PluginManager())


def test_the_version_is_that_of_the_package_everywhere(metadata):
    assert metadata.version == elmokit.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {elmokit.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, date = re.search(r"^## \[(\d\S*)\] - (\S+)$", changelog, re.MULTILINE).groups()
    assert newest == elmokit.__version__
    assert f"\ndate-released: {date}\n" in citation
    assert f"[{newest}]: {REPOSITORY}/" in changelog


def test_links_and_images_of_the_readme_lead_to_files_that_are_there_without_a_tag(metadata):
    readme = metadata.core.readme
    source = (ROOT / "README.md").read_text(encoding="utf-8")
    for text, kind in {"[": f"{REPOSITORY}/blob", "![": "https://raw.githubusercontent.com/elmokit/elmokit"}.items():
        start = re.escape(f"{kind}/HEAD/")
        begin = r"(?<!!)\[" if text == "[" else r"!\["
        rewritten = re.findall(rf"{begin}[^\]]*\]\({start}([^)]+)\)", readme)
        relative = re.findall(rf"{begin}[^\]]*\]\((?![a-z]+:|#)([^)]+)\)", source)
        assert rewritten == relative
        assert relative
        for path in rewritten:
            assert (ROOT / path.partition("#")[0]).exists(), path
    assert not re.search(r"\]\((?!https://|#)", readme)
    assert metadata.core.readme_content_type == "text/markdown"


def test_every_address_of_the_project_is_on_its_own_site(metadata):
    urls = metadata.core.urls
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    for url in urls.values():
        assert url.startswith((REPOSITORY, "https://elmokit.github.io/elmokit")), url


def test_the_citation_is_a_citation_file_with_the_paper_of_elmo():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version"} <= set(citation)
    (paper,) = citation["references"]
    assert (paper["title"], paper["doi"]) == ("Deep contextualized word representations", "10.18653/v1/N18-1202")
    assert [author["family-names"] for author in paper["authors"]] == [
        "Peters", "Neumann", "Iyyer", "Gardner", "Clark", "Lee", "Zettlemoyer",
    ]  # fmt: skip
