"""The old place of `lsp.tiny.training.evaluate`, kept for one release."""

from lsp.tiny.training.evaluate import main
from lsp_kernels.errors import deprecated

if __name__ == "__main__":
    deprecated("python -m lsp.tiny.evaluate", "python -m lsp.tiny.training.evaluate")
    main()
