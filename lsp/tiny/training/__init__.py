"""How the embedded model was made: data, curriculum, a plain model, the training itself, the evaluation.

A tool of this repository: decoding needs none of it, only the checkpoint.
"""
