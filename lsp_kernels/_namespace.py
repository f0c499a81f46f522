"""The namespace of the operators, ``torch.ops.<NAMESPACE>``, in one place.

``setup.py`` reads it from this file and gives it to the compiler, so Python and C++ register the same operators. A copy
of this package under another name and with another namespace works beside this one in the same process. This module
imports nothing, so that ``setup.py`` can read it without torch.
"""

NAMESPACE = "lsp"
