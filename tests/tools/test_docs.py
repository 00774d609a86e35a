"""The documentation is true: every Python block runs, every citation is listed."""

import re
import warnings
from pathlib import Path

import pytest

import globular

ROOT = Path(__file__).parents[2]
PACKAGE = Path(globular.__file__).parent
"""As it is installed: the tests of an archive have no sources beside them."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CITATION = re.compile(r"\b([A-Z]\w+)(?:,? (?:et al\.|&|and|[A-Z]\w+),?)* \(?((?:19|20)\d\d)\b")


def page_id(page: Path) -> str:
    """The page's name in the report of the tests."""
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    """The Python blocks of a page, each behind as many line breaks as it takes to keep its line numbers."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in PYTHON_BLOCK.finditer(text)]


PAGES_WITH_CODE = [page for page in PAGES if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=page_id)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in order, in one namespace and an empty folder; a warning is an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, object] = {"__name__": "docs"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in python_blocks(page):
            exec(compile(block, str(page), "exec"), namespace)


def test_the_pages_have_blocks_to_run() -> None:
    """A change of the markup must not empty the test above without a word."""
    names = {page_id(page) for page in PAGES_WITH_CODE}
    assert {"README.md", "docs/data.md", "docs/running.md", "docs/variational.md"} <= names


def test_index_links_all_pages() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)\s]+)\)", text))
    others = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert others <= linked


def test_algorithm_pages_have_the_same_headings() -> None:
    wanted = ["Problem", "Update", "Cost", "When to use it", "Where we deviate"]
    for name in ("lloyd", "em", "seeding", "variational", "probing", "nested", "chunky"):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == wanted, name


def test_code_cites_what_the_bibliography_lists() -> None:
    """A name with a year in the package's comments has an entry with that author and that year."""
    entries = re.findall(r"^\d+\. .+$", (ROOT / "docs" / "bibliography.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = {
        (match[1], match[2])
        for file in PACKAGE.rglob("*.py")
        for match in CITATION.finditer(file.read_text(encoding="utf-8"))
    }
    assert ("Forster", "2018") in cited  # the pattern finds what it is for
    for author, year in sorted(cited):
        assert any(author in entry and year in entry for entry in entries), f"{author} {year}"
    for file in PACKAGE.rglob("*.py"):
        assert not re.search(r"\bpaper \d", file.read_text(encoding="utf-8")), f"{file} cites a paper by a number"


def test_readme_and_notation_name_every_estimator() -> None:
    estimators = [name for name in globular.__all__ if hasattr(getattr(globular, name), "get_params")]
    for page in ("README.md", "docs/notation.md", "CHANGELOG.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert all(name in text for name in estimators), page


def test_architecture_page_has_every_part_of_the_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    parts = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith(("_", "py.typed"))}
    assert {"cli", "jit", "seeding"} <= parts <= set(re.findall(r"\w+", text))


def test_citation_file_knows_the_papers() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert text.count("type: conference-paper") == 4
