"""Scoring masked positions and choosing how many of them to commit."""

from __future__ import annotations

import torch
from torch import Tensor

from lsp_kernels import _checks
from lsp_kernels._ops import rule_arguments, triton_reason
from lsp_kernels.rule import PrefixRule
from lsp_kernels.triton import configs
from lsp_kernels.types import Commit, TokenStats, Vocabulary, Workspace

_ops = torch.ops.lsp  # with `.default`, which saves the search for an overload


def token_stats(
    logits: Tensor, *, vocabulary: Vocabulary | None = None, workspace: Workspace | None = None
) -> TokenStats:
    """Best token, two largest logits and weight of the rest of every row, in one read of the logits.

    Serves every scheduler: margins are top1 - top2, the best token's probability is sigmoid(-rest).

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16 [R, V] or [B, L, V]
        Any strides, as long as the last dimension is contiguous. Never copied.
    vocabulary : Vocabulary, optional
        Its suppressed ids are never looked at.
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU.

    Returns
    -------
    TokenStats
        ``tokens`` int64, ``top1``, ``top2``, ``rest`` float32, each [R] or [B, L].

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import token_stats
    >>> stats = token_stats(torch.tensor([[0.0, 3.0, 1.0], [2.0, 2.0, 0.0]]))
    >>> stats.tokens, stats.margins
    (tensor([1, 0]), tensor([2., 0.]))
    """
    _checks.check_logits(logits, vocabulary)
    flags, suppressed = _tables(vocabulary)
    return TokenStats(
        *_ops.token_stats.default(logits, flags, suppressed, *_reserve(workspace, logits, logits.shape[:-1].numel()))
    )


def select_prefix(
    margins: Tensor,
    tokens: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
) -> tuple[Tensor, Tensor]:
    """The selection rule alone, for those who have their own margins.

    Parameters
    ----------
    margins : Tensor, float32 [R] or [B, L]
        One sequence, or several by `cu_rows`, or a batch.
    tokens : Tensor, int64, as the margins
        The best token of every row.
    cu_rows, n_active, starts
        As in `commit_prefix`.
    rule : PrefixRule
    vocabulary : Vocabulary, optional
        Delimiters and stops.

    Returns
    -------
    lengths : Tensor, int32 [B]
    finished : Tensor, bool [B]

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, Vocabulary, select_prefix
    >>> margins = torch.tensor([5.0, 4.0, 6.0, 1.0, 3.0, 0.5, 2.0, 0.1])
    >>> tokens = torch.tensor([11, 12, 3, 13, 14, 15, 16, 17])
    >>> select_prefix(margins, tokens, rule=PrefixRule(), vocabulary=Vocabulary(20, delimiters=[3]))
    (tensor([3], dtype=torch.int32), tensor([False]))
    """
    _checks.check_rule(rule, vocabulary)
    _checks.check_stats(margins, tokens, vocabulary)
    _checks.check_sequences(margins, margins.dim(), cu_rows, n_active, starts, rule)
    flags, _ = _tables(vocabulary)
    lengths, finished = _ops.select_prefix.default(
        margins, tokens, cu_rows, n_active, starts, flags, *rule_arguments(rule)
    )
    return lengths, finished


def commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
    workspace: Workspace | None = None,
) -> Commit:
    """Scores the masked positions of a batch and chooses how many of each sequence to commit, in one launch.

    Only the first ``rule.scored_rows(N)`` rows of a sequence are read: nothing after them can change its length.

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16
        A batch [B, L, V], or packed rows [R, V]. Any strides, as long as the last dimension is contiguous; a slice such
        as ``logits[:, a:b]`` is not copied.
    cu_rows : Tensor, int32 [B + 1], optional
        Borders of the sequences in packed rows. Without it they are one sequence.
    n_active : Tensor, int32 [B], optional
        N, how many positions are masked. By default all rows from the start on; it may exceed the rows given, as long
        as the rule sees all it looks at.
    starts : Tensor, int32 [B], optional
        The row of the first masked position, counted from the sequence's first row. Default 0. For a model whose logits
        are shifted by one (Dream) pass the position before the first mask.
    rule : PrefixRule
    vocabulary : Vocabulary, optional
        Delimiters, stops and suppressed ids. ``rule.snap`` needs delimiters.
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU.

    Returns
    -------
    Commit
        ``lengths`` int32 [B], ``finished`` bool [B], and ``tokens`` int64, ``margins`` float32 by the logits' row
        index, [B, L] or [R].

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, Vocabulary, commit_prefix
    >>> logits = torch.zeros(2, 8, 100)
    >>> logits[:, :, 7] = torch.tensor([9.0, 8, 7, 6, 5, 4, 3, 2])
    >>> vocabulary = Vocabulary(100, delimiters=[7], stops=[99])
    >>> commit = commit_prefix(logits, rule=PrefixRule(), vocabulary=vocabulary)
    >>> commit.lengths
    tensor([4, 4], dtype=torch.int32)
    >>> commit.tokens[0]
    tensor([ 7,  7,  7,  7,  7, -1, -1, -1])
    """
    _checks.check_rule(rule, vocabulary)
    _checks.check_logits(logits, vocabulary)
    _checks.check_sequences(logits, logits.dim() - 1, cu_rows, n_active, starts, rule)
    flags, suppressed = _tables(vocabulary)
    batch = logits.size(0) if logits.dim() == 3 else 1 if cu_rows is None else cu_rows.size(0) - 1
    shared = _reserve(workspace, logits, batch)
    return Commit(
        *_ops.commit_prefix.default(
            logits, cu_rows, n_active, starts, flags, suppressed, *rule_arguments(rule), *shared
        )
    )


def warmup(
    logits: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
) -> None:
    """Compiles the GPU kernels for calls like this one, with any number of rows.

    A first call compiles, which fails inside a CUDA graph capture and takes seconds elsewhere. The arguments are those
    of `commit_prefix`; they are read, and nothing else happens to them. Other optional arguments, another kind of rule
    or strides of another divisibility by 16 are other kernels. On a CPU there is nothing to compile.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, warmup
    >>> warmup(torch.zeros(4, 100), rule=PrefixRule(snap=False))
    """
    commit = commit_prefix(logits, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary)
    select_prefix(commit.margins, commit.tokens, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary)
    token_stats(logits, vocabulary=vocabulary)
    if logits.device.type != "cuda" or triton_reason() is not None:
        return
    from lsp_kernels.triton import commit as kernels

    tables = _tables(vocabulary)
    with torch.cuda.device(logits.device):
        for splits in configs.split_counts():
            kernels.token_stats(logits, *tables, None, None, splits=splits)
            kernels.commit_prefix(
                logits, cu_rows, n_active, starts, *tables, *rule_arguments(rule), None, None, splits=splits
            )


def _tables(vocabulary: Vocabulary | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if vocabulary is None else (vocabulary.flags, vocabulary.suppressed)


def _reserve(workspace: Workspace | None, logits: Tensor, n_tickets: int) -> tuple[Tensor | None, Tensor | None]:
    """What the caller's workspace holds for a launch, if there is one and the device has a use for it."""
    _checks.check_workspace(workspace)
    if workspace is None or logits.device.type != "cuda":
        return None, None
    return workspace.reserve(logits.device, *configs.workspace_of(logits, n_tickets))
