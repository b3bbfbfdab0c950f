"""LaTeX that fits its page, from a frame of texts and the marks of its cells.

pandas' Styler writes the rows: index, booktabs rules and colours. This module does what it cannot:
it turns text into TeX, lines numbers up on their decimal points, and folds what is too wide or too
long. A wide table becomes panels below each other, split between datasets; a long table becomes
several floats.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pandas as pd

DASH = "–"  # a cell that has not been run
# Darker is better, and bold and underlined say it again: the order survives a grey print.
HIGHLIGHT = {"first": "#F5A79B", "second": "#FBD3A0", "third": "#FFF3B8"}
CSS = {mark: f"background-color: {colour}" for mark, colour in HIGHLIGHT.items()}
CSS["bold"] = "font-weight: bold"
_FONTS = {"first": r"\textbf{%s}", "second": r"\underline{%s}"}  # of the mean alone

TEXT_WIDTH = 455  # pt a panel may take: a little less than the 6.5 inches of a TMLR page
LINES_PER_FLOAT = 50  # at \footnotesize on a letter page, caption included
_CHARACTER, _COLUMN_SEP = 4.3, 6.0  # pt; widths in \footnotesize, a little more than the digits'

_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "*": r"$^{*}$",
    "±": r"\,$\pm$\,",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\to$",
    "∞": r"$\infty$",
}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta lambda mu rho sigma tau phi omega"
_SPECIAL |= {
    letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθλμρστφω", _GREEK.split(), strict=True)
}

_NUMBER = re.compile(r"(?P<mean>[+<-]?[\d.]+)(?: ± (?P<std>[\d.]+))?(?P<tail>\*?(?: \(.*\))?)")
_BESIDE_NUMBERS = re.compile(r"\[.*\]|–|n/a.*|")  # intervals, and what stands in for a number


def floats(frame: pd.DataFrame, marks: pd.DataFrame, caption: str, label: str | None = None) -> str:
    """Set a table as one `table` environment, or as several, "continued", where a page is too short.

    `marks` has a key of `CSS` or "" for every cell. The document needs booktabs, graphicx, and
    xcolor with [table].
    """
    panels = _panels(frame)
    lines = [rows.stop - rows.start + _head_lines(frame) for rows, _ in panels]
    pages = _packed([slice(i, i + 1) for i in range(len(panels))], lines, LINES_PER_FLOAT)
    # A column narrower than the one planned for shrinks the panel instead of overflowing.
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    out = []
    for page in pages:
        out += [r"\begin{table}[t]", r"\centering"]
        if page.start:
            out += [r"\addtocounter{table}{-1}", rf"\caption{{{tex(caption)} (continued)}}"]
        else:
            out.append(rf"\caption{{{tex(caption)}}}")
            out += [rf"\label{{{label}}}"] if label else []
        # Article classes leave no room below a caption that stands above its table.
        out += [r"\vspace{4pt}", r"\footnotesize", r"\setlength{\tabcolsep}{3pt}"]
        tabulars = [_tabular(frame.iloc[part], marks.iloc[part]) for part in panels[page]]
        out.append("\n\n\\medskip\n".join(f"{fit}\n{tabular}%\n}}" for tabular in tabulars))
        out.append(r"\end{table}")
    return "\n".join(out) + "\n"


def tex(value: object) -> str:
    """Turn text into TeX: specials escaped, minus signs before numbers, unknown letters made plain."""
    out = []
    for c in re.sub(r"(?<![\w)])-(?=\d)", "−", str(value)):
        if c in _SPECIAL:
            out.append(_SPECIAL[c])
        elif ord(c) < 0x180:  # Latin: every LaTeX has it
            out.append(c)
        else:
            out.append(unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode() or "?")
    return "".join(out)


# -- folding ---------------------------------------------------------------------------------------


def _panels(frame: pd.DataFrame) -> list[tuple[slice, slice]]:
    """Split a frame between its top headings and between its groups of rows; returns both slices."""
    columns = [slice(0, frame.shape[1])]  # with one line of headings there is nowhere to split
    if frame.columns.nlevels > 1:
        keys = [[n, *frame.index.get_level_values(i)] for i, n in enumerate(frame.index.names)]
        widths = [_width([head[-1], *cells]) for head, cells in frame.items()]
        room = TEXT_WIDTH - sum(map(_width, keys))
        columns = _packed(_runs(frame.columns.get_level_values(0)), widths, room)
    longest = LINES_PER_FLOAT - _head_lines(frame)
    groups = [  # a group longer than a page is cut where the page ends
        slice(start, min(start + longest, run.stop))
        for run in _runs(frame.index.get_level_values(0))
        for start in range(run.start, run.stop, longest)
    ]
    rows = _packed(groups, [1] * len(frame), longest) or [slice(0, 0)]
    return [(part, panel) for panel in columns for part in rows]


def _head_lines(frame: pd.DataFrame) -> int:
    return frame.columns.nlevels + 2


def _width(texts: Iterable[object]) -> float:
    return max(len(str(text)) for text in texts) * _CHARACTER + _COLUMN_SEP


def _runs(labels: Iterable) -> list[slice]:
    """Find equal neighbours; returns where each run starts and stops."""
    labels = list(labels)
    starts = [i for i in range(len(labels)) if i == 0 or labels[i] != labels[i - 1]]
    return [slice(*ends) for ends in pairwise([*starts, len(labels)])]


def _packed(groups: Sequence[slice], sizes: Sequence[float], room: float) -> list[slice]:
    """Join neighbouring groups as long as the sizes of what they hold fit into `room`."""
    packed: list[slice] = []
    for group in groups:
        if packed and sum(sizes[packed[-1].start : group.stop]) <= room:
            packed[-1] = slice(packed[-1].start, group.stop)
        else:
            packed.append(group)
    return packed


# -- one panel -------------------------------------------------------------------------------------


def _tabular(frame: pd.DataFrame, marks: pd.DataFrame) -> str:
    if not frame.shape[1]:
        return "nothing to show"
    styler = frame.apply(lambda column: _aligned(column, marks[column.name])).style
    if marks.any(axis=None):  # pandas styles no cells of a table with equal names of rows
        styler = styler.apply(lambda _: marks.replace(CSS), axis=None)
    styler = styler.format_index(tex, axis=0).format_index(tex, axis=1)
    styler = styler.hide(axis=0, names=True).hide(axis=1, names=True)
    names = [tex(name or "") for name in frame.index.names]
    if isinstance(frame.index, pd.RangeIndex):
        styler, names = styler.hide(axis=0), []
    numeric = [  # these go to the right, words to the left
        all(_NUMBER.fullmatch(cell) or _BESIDE_NUMBERS.fullmatch(cell) for cell in cells)
        for _, cells in frame.items()
    ]
    lines = styler.to_latex(
        column_format="l" * len(names) + "".join("r" if right else "l" for right in numeric),
        hrules=True,
        convert_css=True,
        multicol_align="c",
        multirow_align="naive",  # names of groups as they are, without the multirow package
    ).splitlines()
    # Styler gives the names of the index a line of their own; here they share the last headings'.
    depth = frame.columns.nlevels
    lines[1 + depth] = " & ".join([*names, lines[1 + depth].removeprefix(" & " * len(names))])
    # Its `clines` would also draw rules inside the groups and a second one at the foot.
    if frame.index.nlevels > 1:
        for run in reversed(_runs(frame.index.get_level_values(0))[1:]):
            lines.insert(3 + depth + run.start, r"\midrule")
    for level in reversed(range(depth - 1)):  # it has no rules below headings that span columns
        spans = _runs(head[: level + 1] for head in frame.columns)
        ends = [(len(names) + span.start + 1, len(names) + span.stop) for span in spans]
        lines.insert(3 + level, "".join(rf"\cmidrule(lr){{{a}-{b}}}" for a, b in ends))
    return "\n".join(lines)


def _aligned(column: pd.Series, marks: pd.Series) -> pd.Series:
    r"""Turn a column into TeX, padded with \phantom so that decimal points and ± stand in line.

    Columns are right-aligned, so only what follows the mean needs padding. (siunitx, which Styler
    can write for, has no place for a star and a number of seeds after the deviation.)
    """
    parts = [_NUMBER.fullmatch(cell) for cell in column]
    numbers = [part for part in parts if part]
    longest_std = max((part["std"] or "" for part in numbers), key=len, default="")
    longest_tail = max((part["tail"] for part in numbers), key=len, default="")
    out = []
    for cell, part, mark in zip(column, parts, marks, strict=True):
        if part is None:
            centred = cell in (DASH, "n/a") and numbers
            out.append(rf"\multicolumn{{1}}{{c}}{{{tex(cell)}}}" if centred else tex(cell))
            continue
        text = _FONTS.get(mark, "%s") % tex(part["mean"])
        if part["std"]:
            gap = "0" * (len(longest_std) - len(part["std"]))
            text += tex("±") + (rf"\phantom{{{gap}}}" if gap else "") + part["std"]
        elif longest_std:
            text += rf"\phantom{{{tex('±')}{longest_std}}}"
        if longest_tail:
            tail = tex(part["tail"])
            text += (rf"\rlap{{{tail}}}" if tail else "") + rf"\phantom{{{tex(longest_tail)}}}"
        out.append(text)
    return pd.Series(out, index=column.index, dtype=object)
