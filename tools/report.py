"""`make report`: the executed notebooks as a small static site that works offline.

`build` turns every `<folder>/<notebook>.ipynb` below a folder into a page beside it, and adds an index,
the glossary and REPRODUCIBILITY.md. A page needs no script and no network: formulas become MathML, a
widget shows its figure, a progress bar its last state. Links between notebooks lead to pages; a link to
a file that the site does not have becomes plain text.
"""

from __future__ import annotations

import functools
import html
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import jinja2
import nbformat
from latex2mathml.converter import convert as mathml
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from nbconvert.preprocessors import TagRemovePreprocessor
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from rslib import presets
from rslib.files import REPOSITORY, write_atomically

WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
TEXTS = {  # pages that are written in Markdown, by their place in the site
    "reproducibility.html": REPOSITORY / "REPRODUCIBILITY.md",
    "differences.html": REPOSITORY / "docs" / "differences.md",
    "glossary.html": GLOSSARY,
}
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Page:
    """An executed notebook and what the index says of it."""

    notebook: Path
    node: NotebookNode
    failed: bool = False  # its last run failed; if there is an older good one, that is shown

    @property
    def file(self) -> Path:
        return self.notebook.with_suffix(".html")

    @property
    def link(self) -> str:
        return f"{self.notebook.parent.name}/{self.file.name}"

    @property
    def title(self) -> str:
        texts = (c.source for c in self.node.cells if c.cell_type == "markdown")
        found = next(filter(None, (re.match("# (.+)", text) for text in texts)), None)
        return found[1] if found else self.notebook.stem

    @property
    def picture(self) -> str | None:
        pictures = (output.get("data", {}).get("image/png") for output in _outputs(self.node))
        return next(filter(None, pictures), None)

    @property
    def facts(self) -> dict[str, str]:
        """The rows of the first table of a notebook: its parameters."""
        tables = (output.get("data", {}).get("text/html", "") for output in _outputs(self.node))
        cells = re.findall("<tr><th>(.*?)</th><td[^>]*>(.*?)</td></tr>", next(tables, ""))
        return {name: html.unescape(value) for name, value in cells}


def build(executed: Path) -> Path:
    """Write every page of the site; returns the index."""
    pages = _pages(executed)
    for page in pages:
        write_atomically(page.file, _notebook_page(page, pages).encode())
    for name, text in TEXTS.items():
        body = _pictures(_links(_markdown(text.read_text()), text, pages, ""), text, executed)
        page = _layout(executed.name, name, text.stem.capitalize(), "", body, pages)
        write_atomically(executed / name, page.encode())
    folders: dict[str, list[Page]] = {}
    for page in pages:
        folders.setdefault(page.notebook.parent.name, []).append(page)
    body = TEMPLATES.get_template("index.html").render(
        folders=[(_folder_title(name, listed), listed) for name, listed in folders.items()]
    )
    page = _layout(executed.name, "index.html", "Replay scheduling: report", "", body, pages)
    return write_atomically(executed / "index.html", page.encode())


def _pages(executed: Path) -> list[Page]:
    pages = []
    for notebook in sorted(executed.glob("*/[0-9][0-9]_*.ipynb")):
        name = notebook.name.removesuffix(".failed.ipynb") + ".ipynb"
        if notebook.name.endswith(".failed.ipynb"):
            if (notebook.parent / name).exists():
                continue  # the good page stays, and says that a later run failed
            pages.append(Page(notebook, nbformat.read(notebook, as_version=4), failed=True))
        else:
            failed = notebook.with_suffix(".failed.ipynb").exists()
            pages.append(Page(notebook, nbformat.read(notebook, as_version=4), failed))
    # The notebooks of the default folder tell the whole story, so they come first.
    return sorted(pages, key=lambda page: (page.notebook.parent.name != "default", page.link))


def _folder_title(name: str, pages: list[Page]) -> str:
    """Such as "Split MNIST: real data, at most 5 seeds": a page says which of them it has."""
    if name == "default":
        return "All notebooks, on their default data: mostly embedded toy data, few seeds"
    kind = "embedded toy data" if name in presets.EMBEDDED else "real data"
    most = max((len(p.facts["seeds"].split(",")) for p in pages if "seeds" in p.facts), default=0)
    seeds = f", at most {most} seeds" if most else ""
    known = presets.PAPER | presets.EMBEDDED
    return f"{known[name].title if name in known else name}: {kind}{seeds}"


# -- one notebook -----------------------------------------------------------------------------------


def _notebook_page(page: Page, pages: list[Page]) -> str:
    node, formulas, caption = without_paths(page.node), Formulas(), ""
    states = node.metadata.pop("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    for cell in node.cells:
        if cell.cell_type == "markdown":
            caption = cell.source
            cell.source = formulas.taken_out(cell.source)
            continue
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = _last_state(output.text)
                continue
            data = output.get("data", {})
            view = data.pop(WIDGET, None)
            if view and "image/png" not in data:
                data["text/plain"] = _bar_text(states, view["model_id"]) or data.get("text/plain")
            if "text/markdown" in data:
                data["text/markdown"] = formulas.taken_out(data["text/markdown"])
            if "image/png" in data:
                output.metadata["image/png"] = {"alt": _plain(caption)}
    body, _ = _exporter().from_notebook_node(node)
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.S)
    body = _links(formulas.put_back(body), page.notebook, pages, "../")
    return _layout(page.notebook.parent.name, page.link, page.title, "../", body, pages)


@functools.cache  # compiling its templates takes as long as converting a notebook
def _exporter() -> HTMLExporter:
    exporter = HTMLExporter(template_name="basic")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    # The table below them says what the parameters were.
    hidden = TagRemovePreprocessor(remove_input_tags={"parameters", "injected-parameters"})
    exporter.register_preprocessor(hidden, enabled=True)
    return exporter


def _outputs(node: NotebookNode) -> list[NotebookNode]:
    return [output for cell in node.cells for output in cell.get("outputs", [])]


def without_paths(node: NotebookNode) -> NotebookNode:
    """A copy in which the folders of this machine are called `.`"""
    given = node.metadata.get("papermill", {}).get("parameters", {})
    text = json.dumps(node)
    for folder in filter(None, (given.get("out_dir"), str(REPOSITORY))):
        text = text.replace(json.dumps(folder)[1:-1], ".")
    return nbformat.reads(text, as_version=4)


def _last_state(text: str) -> str:
    """What a terminal shows in the end: a carriage return goes back to the start of its line."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def _bar_text(states: dict, model_id: str) -> str | None:
    """The final words of a progress bar: those of the widgets it is made of."""
    state = states.get(model_id, {}).get("state", {})
    children = [child.removeprefix("IPY_MODEL_") for child in state.get("children", [])]
    values = [states.get(child, {}).get("state", {}).get("value", "") for child in children]
    words = " ".join(str(value) for value in values if isinstance(value, str)).strip()
    return html.unescape(words) or None


def _plain(markdown: str) -> str:
    """The first paragraph below a heading without its marks, for people who cannot see a figure."""
    text = re.sub(r"^#+ .*$", "", markdown, flags=re.M).strip() or markdown.lstrip("# ")
    text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text.split("\n\n")[0])
    return " ".join(re.sub(r"[*`$]", "", text).split())


# -- text -------------------------------------------------------------------------------------------


class Formulas:
    """Takes formulas out before Markdown is converted, and puts them back as MathML."""

    MATH = re.compile(
        r"(`+.*?`+)|\$\$(.+?)\$\$|(?<![\\$\w])\$([^\s$](?:[^$]*?[^\s$])?)\$(?!\w)", re.S
    )

    def __init__(self) -> None:
        self.found: list[str] = []

    def taken_out(self, text: str) -> str:
        return self.MATH.sub(self._take, text)

    def _take(self, match: re.Match[str]) -> str:
        code, block, inline = match.groups()
        if code:
            return code
        tex = (block or inline).strip()
        self.found.append(mathml(tex, display="block" if block else "inline"))
        return f"FORMULA{len(self.found) - 1}FORMULA"

    def put_back(self, page: str) -> str:
        return re.sub(r"FORMULA(\d+)FORMULA", lambda m: self.found[int(m[1])], page)


def _markdown(text: str) -> str:
    formulas = Formulas()
    return formulas.put_back(markdown2html(formulas.taken_out(text)))


def _links(body: str, source: Path, pages: list[Page], up: str) -> str:
    """Lead every link to a page of the site; what the site does not have becomes plain text."""

    def lead(match: re.Match[str]) -> str:
        target, words = match[1], match[2]
        if re.match("#|https?:|mailto:", target):
            return match[0]
        found = _page_of(target, source, pages)
        return f'<a href="{up}{found}">{words}</a>' if found else words

    return re.sub(r'<a\b[^>]*?href="([^"]*)"[^>]*>(.*?)</a>', lead, body, flags=re.S)


def _pictures(body: str, text: Path, executed: Path) -> str:
    """Lead pictures, which are named from the text's own folder, there from the site."""
    up = os.path.relpath(text.parent, executed)
    return re.sub(r'(<img\b[^>]*?src=")(?!https?:|data:)', rf"\g<1>{up}/", body)


def _page_of(target: str, source: Path, pages: list[Page]) -> str | None:
    """A page for the file that a link names: in the same folder if it has one, else the first."""
    name, _, anchor = target.partition("#")
    file = Path(name)
    if file.suffix == ".md":
        place = next((p for p, text in TEXTS.items() if text.name == file.name), None)
        return place and place + (f"#{anchor}" if anchor else "")
    same = [page for page in pages if page.notebook.stem == file.stem and file.suffix == ".ipynb"]
    beside = [page for page in same if page.notebook.parent == source.parent]
    return next((page.link for page in beside + same), None)


def _layout(folder: str, place: str, title: str, up: str, body: str, pages: list[Page]) -> str:
    row = [page for page in pages if page.notebook.parent.name == folder]
    at = next((i for i, page in enumerate(row) if page.link == place), None)
    terms = _terms() if place != "glossary.html" else {}
    return TEMPLATES.get_template("page.html").render(
        title=title,
        body=body,
        up=up,
        style=HtmlFormatter(style="default").get_style_defs(".highlight"),
        failed=row[at].failed if at is not None else False,
        before=row[at - 1] if at else None,
        after=row[at + 1] if at is not None and at + 1 < len(row) else None,
        terms={term: anchor for term, anchor in terms.items() if _occurs(term, body)},
    )


def _occurs(term: str, body: str) -> bool:
    return re.search(rf"\b{re.escape(term)}\b", re.sub("<[^>]*>", " ", body)) is not None


@functools.cache
def _terms() -> dict[str, str]:
    """The words of the glossary, which are its headings of the second level, and their anchors."""
    heading = r'<h2 id="([^"]*)">(.*?)<a class="anchor-link"'
    found = re.findall(heading, markdown2html(GLOSSARY.read_text()))
    return {html.unescape(re.sub("<[^>]*>", "", words)): anchor for anchor, words in found}


def main() -> int:
    executed = REPOSITORY / "executed"
    if not any(executed.glob("*/*.ipynb")):
        print("no executed notebook yet: run `make paper-figures` first", file=sys.stderr)
        return 1
    print(f"open {build(executed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
