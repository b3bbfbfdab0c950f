"""A `Table` and how it is set: HTML for notebooks, LaTeX that fits its page for papers.

Knows text and layout, not what the numbers mean. The cells go through pandas' Styler (booktabs
rules, cellcolor; no multirow); around it this module turns text into TeX, lines numbers up on
their decimal points, and folds what is too wide or too long: a wide table becomes panels under
each other, split between datasets, a long one several floats.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

DASH = "–"  # a cell that has not been run
# Darker is better, so that the order also survives a grey print and colour blindness.
HIGHLIGHT = {"first": "#F5A79B", "second": "#FBD3A0", "third": "#FFF3B8"}

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

_NUMBER = re.compile(r"^(?P<mean>[+<-]?[\d.]+)(?: ± (?P<std>[\d.]+))?(?P<tail>\*?(?: \(.*\))?)$")


@dataclass(frozen=True)
class Table:
    """What is printed (`frame`), how (`marks`), and the numbers behind it (`values`)."""

    frame: pd.DataFrame  # strings, exactly as shown
    caption: str
    marks: pd.DataFrame = field(repr=False)  # "first", "second", "third", "bold" or ""
    values: pd.DataFrame = field(repr=False)  # one line per cell, numbers in full

    def _id(self) -> str:
        """For the CSS of the cells: a page shows many tables, and none may colour another's."""
        text = f"{self.caption}{self.frame.to_csv()}{self.marks.to_csv()}"
        return f"rslib_{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def style(self) -> Styler:
        """The pandas Styler behind the HTML; more styles can be chained to it."""
        css = {k: f"background-color: {c}; color: black" for k, c in HIGHLIGHT.items()}
        css["bold"] = "font-weight: bold"
        styler: Any = self.frame.style.format(escape="html").format_index(escape="html", axis=0)
        styler = styler.format_index(escape="html", axis=1)
        styler = styler.apply(lambda _: self.marks.replace(css), axis=None)
        if isinstance(self.frame.index, pd.RangeIndex):
            styler = styler.hide(axis="index")
        styler = styler.set_caption(html.escape(self.caption)).set_uuid(self._id())
        return styler.set_table_styles(
            [
                {"selector": "caption", "props": "text-align: left; caption-side: top"},
                {"selector": "td", "props": "text-align: right; white-space: nowrap"},
                {"selector": "th.col_heading", "props": "text-align: center"},
            ]
        )

    def to_latex(self, label: str | None = None, position: str = "t") -> str:
        """Whole `table` environments; needs booktabs, graphicx and xcolor with [table].

        Several, "continued", where one page would not hold it.
        """
        floats: list[list[str]] = [[]]
        lines = 0
        for rows, columns in _blocks(self.frame):
            needed = len(rows) + self.frame.columns.nlevels + 2
            if floats[-1] and lines + needed > LINES_PER_FLOAT:
                floats.append([])
                lines = 0
            part = self.frame.iloc[rows, columns], self.marks.iloc[rows, columns]
            floats[-1].append(_tabular(*part))
            lines += needed
        return "".join(
            _environment(tabulars, self.caption, label, position, continued=i > 0)
            for i, tabulars in enumerate(floats)
        )

    def to_csv(self) -> str:
        """The numbers in full, one line per cell, for whoever computes with them."""
        return self.values.to_csv(index=False, lineterminator="\n")

    def _repr_html_(self) -> str:
        return self.style().to_html()


def plain_table(frame: pd.DataFrame, caption: str, digits: int = 3) -> Table:
    """Any frame as a table: whole numbers as they are, others to `digits` significant figures."""
    shown = frame.map(lambda v: _plain(v, digits))
    counted = isinstance(frame.index, pd.RangeIndex)  # a counter says nothing: it is not shown
    marks = pd.DataFrame("", index=shown.index, columns=shown.columns)
    return Table(shown, caption, marks, frame.reset_index(drop=counted))


def _plain(value: Any, digits: int) -> str:
    if isinstance(value, (float, np.floating)):
        return DASH if not isfinite(value) else f"{value:.{digits}g}"
    return DASH if value is None else str(value)


def tex(value: object) -> str:
    """Text as TeX: specials escaped, minus signs before numbers, unknown letters made plain."""
    out = []
    for c in re.sub(r"(?<![\w)])-(?=\d)", "−", str(value)):
        if c in _SPECIAL:
            out.append(_SPECIAL[c])
        elif ord(c) < 0x180:  # Latin: every LaTeX has it
            out.append(c)
        else:
            out.append(unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode() or "?")
    return "".join(out)


def _environment(tabulars, caption, label, position, continued) -> str:
    head = [rf"\begin{{table}}[{position}]", r"\centering"]
    head += [r"\addtocounter{table}{-1}"] if continued else []
    head.append(rf"\caption{{{tex(caption)}{' (continued)' if continued else ''}}}")
    head += [rf"\label{{{label}}}"] if label and not continued else []
    # Article classes leave no room below a caption that stands above its table.
    head += [r"\vspace{4pt}", r"\footnotesize", r"\setlength{\tabcolsep}{3pt}"]
    # A column narrower than the one planned for shrinks the panel instead of overflowing.
    fit = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    body = "\n\n\\medskip\n".join(f"{fit}\n{t.strip()}%\n}}" for t in tabulars)
    return "\n".join([*head, body, r"\end{table}", ""])


def _blocks(frame: pd.DataFrame) -> Iterator[tuple[list[int], list[int]]]:
    """Row and column positions of the panels: columns folded first, then rows."""
    groups = _runs(list(frame.columns.get_level_values(0)))
    if frame.columns.nlevels == 1:
        groups = [list(range(frame.shape[1]))]  # no headings to split between
    widths = [_width([frame.columns[i]], frame.iloc[:, i]) for i in range(frame.shape[1])]
    keys = sum(
        _width([n], frame.index.get_level_values(i)) for i, n in enumerate(frame.index.names)
    )
    panels: list[list[int]] = [[]]
    for group in groups:
        if panels[-1] and keys + sum(widths[i] for i in panels[-1] + group) > TEXT_WIDTH:
            panels.append([])
        panels[-1] += group
    longest = LINES_PER_FLOAT - frame.columns.nlevels - 2
    for columns in panels:
        rows: list[int] = []
        for group in _runs(list(frame.index.get_level_values(0))):
            if rows and len(rows) + len(group) > longest:
                yield rows, columns
                rows = []
            rows = rows + group
        while len(rows) > longest:  # one group longer than a page: cut where the page ends
            yield rows[:longest], columns
            rows = rows[longest:]
        yield rows, columns


def _runs(labels: list) -> list[list[int]]:
    """Positions of equal neighbours, together."""
    runs: list[list[int]] = []
    for i, value in enumerate(labels):
        if i and labels[i - 1] == value:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _width(heads, cells) -> float:
    last = [h[-1] if isinstance(h, tuple) else h for h in heads]
    return max(len(str(v)) for v in [*last, *cells]) * _CHARACTER + _COLUMN_SEP


def _tabular(frame: pd.DataFrame, marks: pd.DataFrame) -> str:
    if not frame.shape[1]:
        return "nothing to show"
    body = pd.DataFrame(
        {i: _aligned([str(v) for v in frame.iloc[:, i]]) for i in range(frame.shape[1])}
    )
    keys = [] if isinstance(frame.index, pd.RangeIndex) else list(range(frame.index.nlevels))
    starts = [run[0] for run in _runs(list(frame.index.get_level_values(0)))]
    for level in reversed(keys):
        # A name is printed where its run starts; a repeated one within it is left blank.
        path = [tuple(_as_list(v)[: level + 1]) for v in frame.index]
        shown = [tex(p[-1]) if i == 0 or path[i - 1] != p else "" for i, p in enumerate(path)]
        body.insert(0, f"key{level}", shown)
    depth = frame.columns.nlevels
    heads = [("",) * (depth - 1) + (tex(n or ""),) for n in frame.index.names[: len(keys)]]
    heads += [tuple(tex(part) for part in _as_list(c)) for c in frame.columns]
    names = _distinct(heads)
    body.columns = pd.MultiIndex.from_tuples(names) if depth > 1 else [n[0] for n in names]
    commands = marks.replace({k: f"cellcolor:[HTML]{{{c[1:]}}};" for k, c in HIGHLIGHT.items()})
    commands = commands.replace({"bold": "bfseries:;"}).to_numpy(object)
    unmarked = np.full((len(body), len(keys)), "", dtype=object)
    styled = pd.DataFrame(np.hstack([unmarked, commands]), columns=body.columns)
    align = "l" * len(keys) + "".join(
        "r" if _is_numeric(frame.iloc[:, i]) else "l" for i in range(frame.shape[1])
    )
    out = (
        body.style.hide(axis="index")
        .apply(lambda _: styled, axis=None)
        .to_latex(hrules=True, column_format=align, multicol_align="c")
    )
    return _with_rules(out, heads, starts[1:] if len(keys) > 1 else [])


def _with_rules(out: str, heads: list[tuple], separators: list[int]) -> str:
    """Thin rules under headings that span columns, and between the groups of rows."""
    lines = out.replace(_MARKER, "").splitlines()
    first = next(i for i, line in enumerate(lines) if line == r"\midrule") + 1
    for row in sorted(separators, reverse=True):
        lines.insert(first + row, r"\midrule")
    top = lines.index(r"\toprule") + 1
    for level in reversed(range(len(heads[0]) - 1)):
        spans = _runs([h[: level + 1] for h in heads])
        rules = [rf"\cmidrule(lr){{{s[0] + 1}-{s[-1] + 1}}}" for s in spans if heads[s[0]][level]]
        lines.insert(top + level + 1, "".join(rules))
    return "\n".join(lines)


_MARKER = "\u200b"  # makes equal headings distinct for pandas; never reaches the page


def _distinct(heads: list[tuple]) -> list[tuple]:
    seen: dict[tuple, int] = {}
    out = []
    for head in heads:
        seen[head] = seen.get(head, -1) + 1
        out.append((*head[:-1], head[-1] + _MARKER * seen[head]))
    return out


def _aligned(cells: list[str]) -> list[str]:
    r"""One column as TeX, padded with \phantom so that decimal points and ± stand in line.

    Columns are right-aligned, so only what follows the mean needs padding.
    """
    parts = [_NUMBER.match(c) for c in cells]
    stds = [m["std"] for m in parts if m and m["std"]]
    longest_std = max(stds, key=len, default="")
    longest_tail = max((m["tail"] for m in parts if m), key=len, default="")
    numeric = sum(m is not None for m in parts)
    out = []
    for cell, match in zip(cells, parts, strict=True):
        if match is None:
            dash = cell in ("–", "n/a") and numeric
            out.append(rf"\multicolumn{{1}}{{c}}{{{tex(cell)}}}" if dash else tex(cell))
            continue
        line = tex(match["mean"])
        if match["std"]:
            gap = "0" * (len(longest_std) - len(match["std"]))
            line += tex("±") + (rf"\phantom{{{gap}}}" if gap else "") + match["std"]
        elif longest_std:
            line += rf"\phantom{{{tex('±')}{longest_std}}}"
        if longest_tail:
            tail = tex(match["tail"])
            line += (rf"\rlap{{{tail}}}" if tail else "") + rf"\phantom{{{tex(longest_tail)}}}"
        out.append(line)
    return out


def _is_numeric(cells: pd.Series) -> bool:
    """Numbers, intervals and what stands in for them go to the right; words to the left."""
    kinds = (_NUMBER, re.compile(r"^\[.*\]$"), re.compile(r"^(–|n/a.*)?$"))
    return all(any(kind.match(str(c)) for kind in kinds) for c in cells)


def _as_list(key) -> list:
    return list(key) if isinstance(key, tuple) else [key]
