"""The documentation as a site: everything in the navigation, every link and anchor alive, a build without warnings.

That Python blocks run is tested in test_docs.py; here it is the whole: raw HTML, anchors as the site makes them, the
tutorial from its first command to its last.
"""

import doctest
import importlib
import logging
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

import globular
from docs import transcripts
from globular.algorithms.kmeans.pipeline import FADING, QUALITIES
from globular.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)[^>]*\s(?:src|href)=\"([^\"]+)\"")


def page_id(page: Path) -> str:
    """The page's name in the report of the tests."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page: as code hosts and the site make them from headings; those after the first of one name
    are numbered."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=page_id)
def test_links_and_anchors_resolve(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):  # another site
            continue
        path, _, anchor = unquote(target).partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page_id(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page_id(page)} links to {target}"


def navigation() -> list[str]:
    """The pages that mkdocs.yml names, without a parser of YAML."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text[text.index("\nnav:") :], re.MULTILINE)


def test_navigation_has_every_page_once() -> None:
    named = [name for name in navigation() if not name.startswith("project/")]
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_api_pages_have_every_public_name() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: globular\.(\w+)$", text, re.MULTILINE))
    assert documented >= set(globular.__all__) - {"__version__"}
    assert "globular.__version__" in text


def test_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "mkdocs is not installed; it is in the extra 'docs'"
    build = pytest.importorskip("mkdocs.commands.build", reason=reason).build
    pytest.importorskip("material", reason=reason)
    pytest.importorskip("mkdocstrings", reason=reason)
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert told == []
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(navigation())
    for page in pages:  # nothing is fetched from elsewhere
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//", html), page
        assert not re.search(r"<link[^>]*\shref=\"?(?:https?:)?//", html), page


def test_doctests_of_the_package_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    n_examples = 0
    for module in pkgutil.walk_packages(globular.__path__, "globular."):
        needs_torch = module.name.startswith("globular.passes.torch") and find_spec("torch") is None
        if module.name != "globular.__main__" and not needs_torch:
            result = doctest.testmod(importlib.import_module(module.name))
            assert not result.failed, module.name
            n_examples += result.attempted
    assert n_examples > 100


@pytest.mark.parametrize("page", transcripts.PAGES)
def test_transcripts_are_what_the_commands_say(page: str) -> None:
    """All but the slowest commands, and the Python between them; numbers are compared where machines agree on them."""
    for package, extra in (("pyarrow", "io"), ("faiss", "export"), ("onnx", "export")):
        pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra '{extra}'")
    n_compared = 0
    for written, now in transcripts.replayed(page, slow=False):
        assert transcripts.same(written, now), f"docs/transcripts.py writes them anew\n{written}\n---\n{now}"
        n_compared += 1
    assert n_compared >= 8


def test_transcripts_differ_by_words_and_figures_not_by_seconds() -> None:
    written = "$ globular fit a.npy\n inertia  100.0\n seconds  2.1\nNext: x\n"
    assert transcripts.same(written, written.replace("2.1", "30.5").replace("100.0", "101.2"))
    assert not transcripts.same(written, written.replace("100.0", "150.0"))
    assert not transcripts.same(written, written.replace("Next", "Then"))
    assert not transcripts.same(written, written + "More\n")


def test_gallery_shows_the_programs_that_drew_it() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed; it is in the extra 'plot'")
    pytest.importorskip("PIL")
    pyplot.close("all")  # those of other tests, of which older versions of matplotlib warn when the next one begins
    from docs.images import gallery

    assert gallery.PAGE.read_text(encoding="utf-8") == gallery.page()
    assert len(gallery.PROGRAMS) == 8
    for program in gallery.PROGRAMS:
        picture = DOCS / "images" / "gallery" / f"{program.__name__}.png"
        assert 0 < picture.stat().st_size < gallery.MOST_BYTES


def test_command_page_names_every_command_and_option_of_fit() -> None:
    text = (DOCS / "command.md").read_text(encoding="utf-8")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in commands:
        assert f"globular {name}" in text, name
    for option in commands["fit"].params:
        if option.opts[0].startswith("-") and option.name != "help":
            assert any(f"`{spelling}" in text for spelling in option.opts), option.name


def test_choosing_page_knows_the_qualities() -> None:
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    for name, quality in QUALITIES.items():
        few, many = quality.least_gains
        assert f'| `"{name}"` | {quality.n_probes} | {100 * few:g} % | {100 * many:g} % |' in text
    assert f"up to {FADING[0]} clusters | from {FADING[1]:,} on |" in text
