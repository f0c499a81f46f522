"""Text of tokens and files as a terminal may safely show it."""

from __future__ import annotations

KEPT = "\n\t"
ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in KEPT}


def printable(text: str) -> str:
    r"""The text with its control characters as Python writes them: a terminal would obey them.

    Line ends and tabs stay. `\x1b` begins the sequences that move the cursor, set titles or clipboards.

    Examples
    --------
    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\n'
    """
    return text.translate(ESCAPES)
