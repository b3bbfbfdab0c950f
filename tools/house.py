"""`make house`: the rooms of rslib and who imports whom, drawn from the imports into docs/house.png."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from matplotlib.figure import Figure

from rslib.files import REPOSITORY, write_atomically
from rslib.show import style

ROOMS = ("data", "store", "methods", "policies", "runs", "show", "widgets")


def modules() -> dict[str, Path]:
    """Every module of rslib by its name below the package, such as "store.rows"."""
    root = REPOSITORY / "rslib"
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")
    }


def imported(path: Path) -> set[str]:
    """The modules and rooms of rslib that a file imports, inside functions too.

    Imports for type checking do not count. `from rslib import Store` counts as "__init__".
    """
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    known = {name.split(".")[0] for name in modules()}
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in typing_only:
            continue
        if node.module == "rslib":
            found |= {a.name if a.name in known else "__init__" for a in node.names}
        elif str(node.module).startswith("rslib."):
            found.add(str(node.module).split(".")[1])
    return found


def arrows() -> dict[str, set[str]]:
    """By module of the spine or room: what it imports of the others."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        own = module.split(".")[0]
        if own not in ("__init__", "__main__") and not module.endswith("__main__"):
            found.setdefault(own, set()).update(imported(path) - {own, "__init__"})
    return found


def draw() -> Figure:
    """Boxes in layers, each above everything it imports; rooms are filled."""
    needs = arrows()
    level: dict[str, int] = {}
    while len(level) < len(needs):
        for name in (n for n in needs if n not in level and needs[n] <= set(level)):
            level[name] = 1 + max((level[other] for other in needs[name]), default=-1)
    layers = [sorted(n for n in level if level[n] == i) for i in range(max(level.values()) + 1)]
    place = {
        name: ((i + 0.5) / len(layer), y)
        for y, layer in enumerate(layers)
        for i, name in enumerate(layer)
    }
    with style.context():
        fig, (ax,) = style.panels(1, 1, style.PAGE, 0.42 * len(layers) + 0.3)
        for name, others in needs.items():
            for other in others:
                (x, y), (to_x, to_y) = place[name], place[other]
                ax.plot([x, to_x], [y, to_y], color="#CCCCCC", linewidth=0.6, zorder=1)
        for name, (x, y) in place.items():
            box = dict(boxstyle="round", facecolor="#FFFFFF", edgecolor="#777777", linewidth=0.7)
            box |= dict(facecolor="#CFE3F2", edgecolor="#0072B2") if name in ROOMS else {}
            text = f"{name}/" if name in ROOMS else name
            ax.text(x, y, text, ha="center", va="center", bbox=box, zorder=2)
        ax.set(xlim=(0, 1), ylim=(-0.6, len(layers) - 0.4))
        ax.axis("off")
    return fig


def main() -> int:
    import io

    out = io.BytesIO()
    draw().savefig(out, format="png", dpi=style.DPI, metadata={"Software": None})
    print("wrote", write_atomically(REPOSITORY / "docs" / "house.png", out.getvalue()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
