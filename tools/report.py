"""`make report`: the executed notebooks as a static site in `executed/` that works offline.

nbconvert prefers a widget's own mime type and would load scripts from the network to show it; here
the widget views are dropped before converting, so that the figure beside them is what is seen.
"""

from __future__ import annotations

import base64
import functools
import html
import re
import sys
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from rslib.files import REPOSITORY, write_atomically

WIDGET = "application/vnd.jupyter.widget-view+json"
_STYLE = """
body { font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 1em }
li { width: 20em; border: 1px solid #ccc; border-radius: 6px; padding: 0.8em }
img { max-width: 100%; max-height: 11em; display: block; margin: auto }
"""


def write_html(notebook: Path) -> Path:
    """One executed notebook as one HTML file, everything inside it."""
    node = nbformat.read(notebook, as_version=4)
    node.metadata.pop("widgets", None)
    for cell in node.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    body, _ = _exporter().from_notebook_node(node)
    # The scripts that remain fetch more (Mermaid); a printed notebook needs none of them.
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.S)
    target = notebook.with_suffix(".html")
    write_atomically(target, body.encode())
    return target


@functools.cache  # compiling its templates takes as long as converting a notebook
def _exporter() -> HTMLExporter:
    exporter = HTMLExporter(template_name="lab", embed_images=True)
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    # The template's scripts (MathJax, require.js) come from a network: empty addresses load nothing.
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = ""
    return exporter


def write_index(executed: Path, out_dir: Path) -> Path:
    """The page that links every executed notebook, with a picture from it as thumbnail."""
    sections = []
    for folder in sorted({p.parent for p in executed.glob("*/*.ipynb")}):
        items = []
        for notebook in sorted(folder.glob("*.ipynb")):
            node = nbformat.read(notebook, as_version=4)
            link = html.escape(f"{folder.name}/{notebook.with_suffix('.html').name}")
            title = html.escape(_title(node) or notebook.stem)
            picture = _thumbnail(node)
            image = f'<img alt="" src="data:image/png;base64,{picture}">' if picture else ""
            items.append(f'<li><a href="{link}">{image}{title}</a></li>')
        name = "default datasets" if folder.name == "default" else folder.name
        sections.append(f"<h2>{html.escape(name)}</h2><ul>{''.join(items)}</ul>")
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>Replay scheduling: report</title><style>{_STYLE}</style>"
        "<h1>Replay scheduling for continual learning</h1>"
        "<p>Executed notebooks. Figures and tables are also in "
        f"<code>{html.escape(str(out_dir))}</code> under figures/ and tables/.</p>"
        f"{''.join(sections)}</html>"
    )
    target = executed / "index.html"
    write_atomically(target, page.encode())
    return target


def _title(node: nbformat.NotebookNode) -> str | None:
    for cell in node.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.splitlines()[0].removeprefix("# ")
    return None


def _thumbnail(node: nbformat.NotebookNode) -> str | None:
    """The first picture of a notebook."""
    for cell in node.cells:
        for output in cell.get("outputs", []):
            picture = output.get("data", {}).get("image/png")
            if picture:
                raw = base64.b64decode("".join(picture))
                return base64.b64encode(raw).decode()
    return None


def main() -> int:
    executed = REPOSITORY / "executed"
    notebooks = sorted(executed.glob("*/*.ipynb"))
    if not notebooks:
        print("no executed notebook yet: run `make paper-figures` first", file=sys.stderr)
        return 1
    for notebook in notebooks:
        write_html(notebook)
    print(f"open {write_index(executed, REPOSITORY)} ({len(notebooks)} notebooks)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
