"""Scoring masked positions and choosing how many of them to commit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._checks import check_logits, check_stats, check_vocabulary
from ._operands import explain
from ._ops import operators, triton_reason
from .errors import deprecated
from .noise import Noise, check_noise_kind, table_of
from .results import Commit, TokenStats
from .rule import PrefixRule
from .triton.configs.commit import commit_workspace, stats_workspace
from .vocabulary import Vocabulary, check_rule
from .workspace import Workspace, reserve

NOTHING = None, None  # no workspace

# Looked up once: it takes longer than the checks. Each operator checks its arguments by itself.
_token_stats = operators.token_stats.default
_select_prefix = operators.select_prefix.default
_commit_prefix = operators.commit_prefix.default


def token_stats(
    logits: Tensor,
    *,
    vocabulary: Vocabulary | None = None,
    id_offset: int = 0,
    noise: Noise | None = None,
    entropy: bool = False,
    workspace: Workspace | None = None,
) -> TokenStats:
    """Best token, two largest logits and log-odds of the best token, of every row, in one read of the logits.

    The result has what schedulers rank by: margins are top1 - top2, the best token's probability is sigmoid(log_odds).

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16 [R, V] or [B, L, V]
        Any strides, as long as the last dimension is contiguous. Never copied.
    vocabulary : Vocabulary, optional
        Its suppressed ids are left out.
    id_offset : int
        Added to the tokens: the first id of a shard of the vocabulary.
    noise : Noise, optional
        Makes the tokens samples at a temperature; see `TokenStats` for what is noisy then and what is not.
    entropy : bool
        Whether to compute the entropy of every row too.
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU.

    Returns
    -------
    TokenStats
        ``tokens`` int64, ``top1``, ``top2``, ``log_odds`` float32, each [R] or [B, L]; ``entropy`` and
        ``clean`` where they belong to the call, else None.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import token_stats
    >>> stats = token_stats(torch.tensor([[0.0, 3.0, 1.0], [2.0, 2.0, 0.0]]))
    >>> stats.tokens, stats.margins
    (tensor([1, 0]), tensor([2., 0.]))
    """
    try:
        shared = NOTHING if workspace is None else reserve(workspace, logits.device, stats_workspace, logits)
        options = (id_offset, table_of(noise), entropy)
        return stats_of(_token_stats(logits, *tables_of(vocabulary), *options, *shared), noise, entropy)
    except Exception:
        check_logits(logits)
        check_vocabulary(vocabulary, logits.size(-1), logits)
        check_noise_kind(noise)
        explain("token_stats", logits, *tables_of(vocabulary), id_offset, table_of(noise), entropy, *NOTHING)
        raise


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
    """The selection rule alone, on margins that the caller has.

    Parameters
    ----------
    margins : Tensor, float32 [R] or [B, L]
        Packed rows, which are one sequence without `cu_rows`, or a batch.
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
    try:
        if rule.snap:
            check_rule(rule, vocabulary)
        flags, *_ = tables_of(vocabulary)
        lengths, finished = _select_prefix(margins, tokens, cu_rows, n_active, starts, flags, *rule.arguments)
        return lengths, finished
    except Exception:
        check_rule(rule, vocabulary)
        check_stats(margins, tokens)
        check_vocabulary(vocabulary, None, margins)
        flags, *_ = tables_of(vocabulary)
        explain("select_prefix", margins, tokens, cu_rows, n_active, starts, flags, *rule.arguments)
        raise


def commit_prefix(
    logits: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
    noise: Noise | None = None,
    log_odds: bool = False,
    workspace: Workspace | None = None,
) -> Commit:
    """Scores the masked positions of a batch and chooses how many of each sequence to commit, in one launch.

    Only the first ``rule.scored_rows(N)`` rows of a sequence are read: the rows after them cannot change its length.

    Parameters
    ----------
    logits : Tensor, float32, bfloat16 or float16
        A batch [B, L, V], or packed rows [R, V]. Any strides, as long as the last dimension is contiguous; a slice such
        as ``logits[:, a:b]`` is not copied.
    cu_rows : Tensor, int32 [B + 1], optional
        Borders of the sequences in packed rows. Without it they are one sequence.
    n_active : Tensor, int32 [B], optional
        N, how many positions are masked; by default all rows from the start on. It may exceed the number of rows
        given, as long as there are ``rule.scored_rows(N)`` of them.
    starts : Tensor, int32 [B], optional
        The row of the first masked position, counted from the sequence's first row; by default 0. For a model whose
        logits are shifted by one (Dream) pass the row before it.
    rule : PrefixRule
    vocabulary : Vocabulary, optional
        Delimiters, stops and suppressed ids. ``rule.snap`` needs delimiters.
    noise : Noise, optional
        Makes the tokens samples at a temperature; margins are those of the noisy logits.
    log_odds : bool
        Whether to compute the log-odds of every scored row too, and so the probability of its token.
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU.

    Returns
    -------
    Commit
        ``lengths`` int32 [B], ``finished`` bool [B], and ``tokens`` int64, ``margins``, ``top1``, ``log_odds`` float32
        for every row of the logits, [B, L] or [R].

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
    try:
        if rule.snap:
            check_rule(rule, vocabulary)
        shared: tuple[Tensor | None, Tensor | None] = NOTHING
        if workspace is not None:
            shared = reserve(workspace, logits.device, commit_workspace, logits, cu_rows, n_active, rule)
        operands = (logits, cu_rows, n_active, starts, *tables_of(vocabulary), *rule.arguments)
        return commit_of(_commit_prefix(*operands, table_of(noise), log_odds, *shared), log_odds)
    except Exception:
        check_rule(rule, vocabulary)
        check_logits(logits)
        check_vocabulary(vocabulary, logits.size(-1), logits)
        check_noise_kind(noise)
        operands = (logits, cu_rows, n_active, starts, *tables_of(vocabulary), *rule.arguments)
        explain("commit_prefix", *operands, table_of(noise), log_odds, *NOTHING)
        raise


def warmup_commit(
    logits: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    vocabulary: Vocabulary | None = None,
    noise: Noise | None = None,
    log_odds: bool = False,
    entropy: bool = False,
) -> None:
    """Compiles the GPU kernels for calls of the commit operations like this one, with any number of rows.

    The first call of an operation compiles its kernel, which takes seconds and fails inside a CUDA graph capture. The
    arguments are those of `commit_prefix`, and `entropy` of `token_stats`; they are only read. Covered are calls with
    any number of rows and sequences, any strides, and pointers that are aligned to 16 bytes or not. Other kernels are
    used for another dtype, for a batch instead of packed rows, with other optional arguments present (``cu_rows``,
    ``n_active``, ``starts``, a vocabulary, suppressed ids, noise), for other results (``log_odds``, ``entropy``), for
    noise with an ``id_offset`` that is no multiple of 4, and for a rule with a floor instead of one without, another
    ``snap`` or ``no_delimiter``. On a CPU there is nothing to compile.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, warmup_commit
    >>> warmup_commit(torch.zeros(4, 100), rule=PrefixRule(snap=False))
    """
    commit_prefix(logits, cu_rows, n_active, starts, rule=rule, vocabulary=vocabulary, noise=noise)  # checks these
    if logits.device.type != "cuda" or triton_reason(logits.device) is not None:
        return
    from .triton.warmup import compile_commit

    with torch.cuda.device(logits.device):
        options = (noise is not None, log_odds, entropy)
        compile_commit(logits, cu_rows, n_active, starts, tables_of(vocabulary), rule.arguments, *options)


def warmup(*arguments: Any, **options: Any) -> None:
    """Deprecated: `warmup_commit`."""
    deprecated("lsp_kernels.warmup", "lsp_kernels.warmup_commit")
    warmup_commit(*arguments, **options)


def tables_of(vocabulary: Vocabulary | None) -> tuple[Tensor | None, Tensor | None, int]:
    return (None, None, 0) if vocabulary is None else vocabulary.tables


def stats_of(found: tuple[Tensor, ...], noise: Noise | None, entropy: bool) -> TokenStats:
    """The results of an operator by name, without those that were not asked for."""
    tokens, top1, top2, log_odds, h, clean = found
    return TokenStats(tokens, top1, top2, log_odds, h if entropy else None, None if noise is None else clean)


def commit_of(found: tuple[Tensor, ...], log_odds: bool) -> Commit:
    return Commit(*found) if log_odds else Commit(*found[:5])
