"""The operations as Triton kernels, for NVIDIA and AMD GPUs. Importing this package does not import Triton."""
