"""Tables in Markdown, and the parts of a text between two comments that are written by a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

SECTION = re.compile(r"(<!-- benchmarks: (\w+) -->\n)(.*?)(<!-- benchmarks: end -->)", re.DOTALL)


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """The first column is words, the others are numbers.

    Examples
    --------
    >>> print(table(["case", "ours"], [["1 row", "1.16"]]), end="")
    | case | ours |
    |---|---:|
    | 1 row | 1.16 |
    """
    rows = [list(heads), *map(list, lines)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([text[0], "|---" + "|---:" * (len(heads) - 1) + "|", *text[1:]]) + "\n"


def sections(text: str) -> dict[str, str]:
    """What is between the comments, by name.

    Examples
    --------
    >>> sections("a\\n<!-- benchmarks: loop -->\\nb\\n<!-- benchmarks: end -->\\nc")
    {'loop': 'b\\n'}
    """
    return {found[2]: found[3] for found in SECTION.finditer(text)}


def with_sections(text: str, written: Mapping[str, str]) -> str:
    """The same text with other sections; a name that nobody writes is an error.

    Examples
    --------
    >>> with_sections("<!-- benchmarks: loop -->\\nold\\n<!-- benchmarks: end -->", {"loop": "new\\n"})
    '<!-- benchmarks: loop -->\\nnew\\n<!-- benchmarks: end -->'
    """
    if unknown := set(sections(text)) - set(written):
        raise ValueError(f"Invalid section: expected one of {', '.join(written)}, got {', '.join(sorted(unknown))}")
    return SECTION.sub(lambda found: f"{found[1]}{written[found[2]]}{found[4]}", text)
