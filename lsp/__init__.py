"""Decoding of diffusion language models by the longest stable prefix, on the operations of `lsp_kernels`."""
