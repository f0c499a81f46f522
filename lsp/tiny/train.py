"""The old place of `lsp.tiny.training.train`, kept for one release."""

from lsp.tiny.training.train import main
from lsp_kernels.errors import deprecated

if __name__ == "__main__":
    deprecated("python -m lsp.tiny.train", "python -m lsp.tiny.training.train")
    main()
