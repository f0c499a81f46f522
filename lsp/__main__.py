"""``python -m lsp`` is the `lsp` command."""

from lsp.cli import main

if __name__ == "__main__":
    main()
