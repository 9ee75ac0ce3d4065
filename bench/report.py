"""Tables in Markdown, and where they stand in docs/performance.md."""
import re

BLOCK = "<!-- bench: {name} -->\n{text}\n<!-- end -->"


def number(value):
    """Three digits or all before the point; nothing for None."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def ratio(one, other):
    return f"{one / other:.2f}"


def table(header, rows):
    """The first column of a row is text; others are numbers, or text as it is."""
    cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" if row else "|" + "---|" * len(header) for row in [header, [], *cells])


def replaced(document, name, text):
    """The document with another text between the markers of `name`.

    Raises KeyError where it has no such markers.
    """
    pattern = re.escape(BLOCK).replace(r"\{name\}", re.escape(name)).replace(r"\{text\}", r"(?:(?!<!--).)*")
    changed, count = re.subn(pattern, lambda _: BLOCK.format(name=name, text=text), document, flags=re.DOTALL)
    if count != 1:
        raise KeyError(name)
    return changed
