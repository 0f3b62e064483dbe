"""One self-contained HTML page: text, tables and figures, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import html
import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx

from dynwarp.errors import ArgumentError

_STYLE = """
:root { --ink: #1b1b1b; --soft: #555; --line: #d9d9d9; --accent: #0b5394; }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; color: var(--ink);
       background: #fff; margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 58rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { margin: .6rem 0; max-width: 46rem; }
code { font: .9em ui-monospace, Menlo, Consolas, monospace; background: #f3f3f3;
       padding: .05em .3em; border-radius: 3px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .93rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .93rem; max-width: 46rem; }
nav ul { padding-left: 1.1rem; }
a { color: var(--accent); }
@media print { nav { display: none; } body { max-width: none; } }
"""


class Text(eqx.Module):
    """Paragraphs, separated by blank lines; `**bold**` and `` `code` `` are marked up, all else is shown as it is.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.report.Text("a **b** <c>").to_html()
    '<p>a <strong>b</strong> &lt;c&gt;</p>'
    """

    text: str

    def to_html(self) -> str:
        """The block as HTML."""
        paragraphs = [p for p in re.split(r"\n\s*\n", self.text.strip()) if p]
        return "\n".join(f"<p>{_inline(p)}</p>" for p in paragraphs)


class Table(eqx.Module):
    """A table: a header and rows of equal length. Numbers stand right; floats are shown to 4 digits.

    **Raises:** `ArgumentError` for a row of another length.

    **Example:**

    >>> import dynwarp as dw
    >>> "<td class=\\"number\\">0.3333</td>" in dw.report.Table(["name", "value"], [["third", 1 / 3]]).to_html()
    True
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __check_init__(self):
        for row in self.rows:
            if len(row) != len(self.header):
                raise ArgumentError(f"Table: a row has {len(row)} cells and the header {len(self.header)}: {row!r}.")

    def to_html(self) -> str:
        """The block as HTML."""
        numeric = [bool(self.rows) and all(_is_number(row[i]) for row in self.rows) for i in range(len(self.header))]
        head = "".join(
            f'<th scope="col"{_number_class(right)}>{_inline(name)}</th>' for name, right in zip(self.header, numeric)
        )
        body = "\n".join(
            "<tr>" + "".join(f"<td{_number_class(_is_number(x))}>{_inline(show(x))}</td>" for x in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{_inline(self.caption)}</caption>" if self.caption else ""
        table = f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
        return f'<div class="scroll">{table}</div>'


class Figure(eqx.Module):
    """A matplotlib figure, drawn into the page as SVG, or an animation, as GIF.

    **Arguments:** `figure`; `caption`, shown below; `description`, what is seen, for those who do not see it.
    """

    figure: Any
    caption: str
    description: str

    def to_html(self) -> str:
        """The block as HTML."""
        kind, picture = drawn(self.figure)
        source = f"data:image/{'svg+xml' if kind == 'svg' else kind};base64,{base64.b64encode(picture).decode()}"
        return (
            f'<figure><img src="{source}" alt="{html.escape(self.description, quote=True)}">'
            f"<figcaption>{_inline(self.caption)}</figcaption></figure>"
        )


def drawn(figure: Any) -> tuple[str, bytes]:
    """A matplotlib figure, or an animation, as the end of a file's name, "svg" or "gif", and what is in the file."""
    import matplotlib

    if hasattr(figure, "to_jshtml"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "film.gif"
            figure.save(path, writer="pillow")
            return "gif", path.read_bytes()
    buffer = io.BytesIO()
    # A fixed salt and no date: the same figure gives the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "dynwarp"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "svg", buffer.getvalue()


class Section(eqx.Module):
    """A heading and the blocks below it: texts, tables, figures."""

    title: str
    blocks: Sequence[Text | Table | Figure]


def page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """One self-contained HTML page.

    **Arguments:** `title`; `summary`, text below it; `sections`, in order.

    **Returns:** the page, a string. All text is escaped, figures are embedded, nothing is loaded from elsewhere, and
    there is no script.

    **Example:**

    >>> import dynwarp as dw
    >>> html = dw.report.page("A <title>", [dw.report.Section("One", [dw.report.Text("words")])])
    >>> "A &lt;title&gt;" in html, "http" in html
    (True, False)
    """
    contents = "".join(f'<li><a href="#s{i}">{_inline(s.title)}</a></li>' for i, s in enumerate(sections, 1))
    body = "\n".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{_inline(s.title)}</h2>\n'
        + "\n".join(block.to_html() for block in s.blocks)
        + "</section>"
        for i, s in enumerate(sections, 1)
    )
    heading = html.escape(title)
    lead = Text(summary).to_html() if summary else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{heading}</h1>\n{lead}</header>\n<nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def show(value: Any) -> str:
    """A value as it stands in a table: floats to 4 significant digits."""
    if isinstance(value, bool) or not _is_number(value):
        return "yes" if value is True else "no" if value is False else str(value)
    return f"{value:.4g}" if isinstance(value, float) or hasattr(value, "dtype") else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_class(right: bool) -> str:
    return ' class="number"' if right else ""


def _inline(text: str) -> str:
    escaped = html.escape(text)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
