"""`make report`: the executed notebooks as a static site in `executed/` that works offline.

nbconvert prefers a widget's own mime type and would load scripts from the network to show it. So the
widget views are dropped before converting, and the figure beside each of them is shown.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import jinja2
import nbformat
from nbconvert import HTMLExporter

from rslib.files import REPOSITORY, write_atomically

WIDGET = "application/vnd.jupyter.widget-view+json"
INDEX = jinja2.Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Replay scheduling: report</title>
<style>
body { font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 1em }
li { width: 20em; border: 1px solid #ccc; border-radius: 6px; padding: 0.8em }
img { max-width: 100%; max-height: 11em; display: block; margin: auto }
</style>
<h1>Replay scheduling for continual learning</h1>
<p>Executed notebooks. Figures and tables are also in <code>{{ out_dir }}</code> under figures/ and
tables/.</p>
{% for folder, notebooks in folders %}
<h2>{{ "default datasets" if folder == "default" else folder }}</h2>
<ul>
{% for link, title, picture in notebooks %}
<li><a href="{{ link }}">
{% if picture %}<img alt="" src="data:image/png;base64,{{ picture }}">{% endif %}
{{ title }}</a></li>
{% endfor %}
</ul>
{% endfor %}
</html>
""",
    autoescape=True,
    trim_blocks=True,
)


def write_html(notebook: Path) -> Path:
    """Convert one executed notebook to one HTML file that holds everything it shows."""
    node = nbformat.read(notebook, as_version=4)
    node.metadata.pop("widgets", None)
    for output in _outputs(node):
        output.get("data", {}).pop(WIDGET, None)
    body, _ = _exporter().from_notebook_node(node)
    # The scripts that remain fetch more (Mermaid); a printed notebook needs none of them.
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.S)
    return write_atomically(notebook.with_suffix(".html"), body.encode())


@functools.cache  # compiling its templates takes as long as converting a notebook
def _exporter() -> HTMLExporter:
    exporter = HTMLExporter(template_name="lab", embed_images=True)
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    # The template's scripts (MathJax, require.js) come from a network: empty addresses load nothing.
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = ""
    return exporter


def write_index(executed: Path, out_dir: Path) -> Path:
    """Write the page that links every executed notebook, with its first picture as thumbnail."""
    folders: dict[str, list[tuple[str, str, str | None]]] = {}
    for notebook in sorted(executed.glob("*/*.ipynb")):
        node = nbformat.read(notebook, as_version=4)
        headings = (re.match("# (.+)", c.source) for c in node.cells if c.cell_type == "markdown")
        title = next((found[1] for found in headings if found), notebook.stem)
        pictures = (output.get("data", {}).get("image/png") for output in _outputs(node))
        link = notebook.with_suffix(".html").relative_to(executed).as_posix()
        listed = folders.setdefault(notebook.parent.name, [])
        listed.append((link, title, next(filter(None, pictures), None)))
    page = INDEX.render(folders=folders.items(), out_dir=out_dir)
    return write_atomically(executed / "index.html", page.encode())


def _outputs(node: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in node.cells for output in cell.get("outputs", [])]


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
