"""A grid of texts that prints itself: on a terminal, as Markdown and as LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "^": r"\^{}",
          "~": r"\~{}", "{": r"\{", "}": r"\}", "|": r"\textbar{}"}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A title, the heads of the columns, and rows of texts; a column without any text is left out."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def filled(self) -> "Grid":
        """Return the grid without its empty columns."""
        kept = [place for place in range(len(self.head)) if any(row[place] for row in self.rows)]
        return Grid(
            self.title, tuple(self.head[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in self.rows)
        )

    def text(self) -> str:
        """Return aligned text."""
        widths = [max(map(len, cells)) for cells in zip(self.head, *self.rows, strict=True)]
        return "\n".join([self.title, *(_line(row, widths) for row in (self.head, *self.rows))])

    def markdown(self) -> str:
        """Return a Markdown table under its title."""
        rule = "|".join("---" for _ in self.head)
        lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in self.rows)
        return "\n".join([f"**{self.title}**", "", f"| {' | '.join(self.head)} |", f"|{rule}|", *lines])

    def latex(self) -> str:
        """Return a LaTeX table that needs the package booktabs."""
        lines = [f"{' & '.join(map(_escaped, row))} \\\\" for row in (self.head, *self.rows)]
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        columns = "l" * len(self.head)
        frame = (r"\begin{table}", r"\centering", f"\\begin{{tabular}}{{{columns}}}")
        return "\n".join([*frame, *body, r"\end{tabular}", f"\\caption{{{_escaped(self.title)}}}", r"\end{table}"])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def percent(value: float | None) -> str:
    """Return a share times 100, as the paper prints it."""
    return "" if value is None else f"{100 * value:.2f}"


def signed(value: float | None) -> str:
    """Return a difference of shares times 100, with its sign."""
    return "" if value is None else f"{100 * value:+.2f}"


def ends(low: float | None, high: float | None, *, sign: bool = False) -> str:
    """Return an interval times 100."""
    show = signed if sign else percent
    return "" if low is None or high is None else f"[{show(low)}, {show(high)}]"
