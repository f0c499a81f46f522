"""The LM head fused with the statistics and with the commit: hidden states in, no logits in between."""

from __future__ import annotations

import torch
from torch import Tensor

from ._checks import check_head, check_vocabulary
from ._operands import explain
from ._ops import operators, triton_reason
from .commit import NOTHING, commit_of, stats_of, tables_of
from .noise import Noise, check_noise_kind, table_of
from .results import Commit, TokenStats
from .rule import PrefixRule
from .triton.configs.head import head_commit_workspace, head_stats_workspace
from .vocabulary import Vocabulary, check_rule
from .workspace import Workspace, reserve

_linear_token_stats = operators.linear_token_stats.default
_linear_commit_prefix = operators.linear_commit_prefix.default


def linear_token_stats(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    vocabulary: Vocabulary | None = None,
    id_offset: int = 0,
    noise: Noise | None = None,
    entropy: bool = False,
    workspace: Workspace | None = None,
) -> TokenStats:
    """`token_stats` of the logits ``hidden @ weight.T + bias``, which are never stored.

    Parameters
    ----------
    hidden : Tensor, float32, bfloat16 or float16, [B, L, d] or [R, d]
        Final hidden states; any strides, as long as the last dimension is contiguous.
    weight : Tensor, dtype of hidden, [V, d]
        The weight of the LM head, as it is: no other copy of it is made.
    bias : Tensor, dtype of hidden, [V], optional
    vocabulary : Vocabulary, optional
        Its suppressed ids are left out. It has V ids.
    id_offset : int
        Added to the tokens: the first id of a shard of the vocabulary.
    noise, entropy
        As in `token_stats`. Noise is that of the ids with the offset, so shards draw the tokens of the whole.
    workspace : Workspace, optional
        Saves an allocation and a memset on a GPU.

    Returns
    -------
    TokenStats
        Of logits that are accumulated in float32, whatever the dtype. In 16 bits `torch.nn.functional.linear` rounds
        the logits first, so the best token may be another one where two logits are closer than that rounding.

    Notes
    -----
    A logit is wrong by at most ``d * 2**-23 * |h| * |w|``, with the Euclidean norms of the row and of the id's weight,
    however it is accumulated. So the tokens of any two backends are equal where the margin exceeds twice that.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import linear_token_stats
    >>> stats = linear_token_stats(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    >>> stats.tokens, stats.margins
    (tensor([2]), tensor([1.]))
    """
    try:
        shared: tuple[Tensor | None, Tensor | None] = NOTHING
        if workspace is not None:
            shared = reserve(workspace, hidden.device, head_stats_workspace, hidden, weight, noise is not None)
        options = (id_offset, table_of(noise), entropy)
        found = _linear_token_stats(hidden, weight, bias, *tables_of(vocabulary), *options, *shared)
        return stats_of(found, noise, entropy)
    except Exception:
        check_head(hidden, weight, bias)
        check_vocabulary(vocabulary, weight.size(0), hidden)
        check_noise_kind(noise)
        options = (id_offset, table_of(noise), entropy)
        explain("linear_token_stats", hidden, weight, bias, *tables_of(vocabulary), *options, *NOTHING)
        raise


def linear_commit_prefix(
    hidden: Tensor,
    weight: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    bias: Tensor | None = None,
    vocabulary: Vocabulary | None = None,
    noise: Noise | None = None,
    log_odds: bool = False,
    workspace: Workspace | None = None,
) -> Commit:
    """`commit_prefix` of the logits ``hidden @ weight.T + bias``, which are never stored.

    Only the rows that the rule looks at are computed. `hidden`, `weight` and `bias` are as in `linear_token_stats`, the
    other arguments as in `commit_prefix`.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, linear_commit_prefix
    >>> hidden, weight = torch.eye(4)[:, :3], 5 * torch.eye(3)
    >>> linear_commit_prefix(hidden, weight, rule=PrefixRule(0.25, 1.0, snap=False)).tokens
    tensor([0, 1, 2, 0])
    """
    try:
        if rule.snap:
            check_rule(rule, vocabulary)
        shared: tuple[Tensor | None, Tensor | None] = NOTHING
        if workspace is not None:
            shape = (hidden, weight, cu_rows, n_active, rule, noise is not None)
            shared = reserve(workspace, hidden.device, head_commit_workspace, *shape)
        operands = (hidden, weight, bias, cu_rows, n_active, starts, *tables_of(vocabulary), *rule.arguments)
        return commit_of(_linear_commit_prefix(*operands, table_of(noise), log_odds, *shared), log_odds)
    except Exception:
        check_rule(rule, vocabulary)
        check_head(hidden, weight, bias)
        check_vocabulary(vocabulary, weight.size(0), hidden)
        check_noise_kind(noise)
        operands = (hidden, weight, bias, cu_rows, n_active, starts, *tables_of(vocabulary), *rule.arguments)
        explain("linear_commit_prefix", *operands, table_of(noise), log_odds, *NOTHING)
        raise


def warmup_head(
    hidden: Tensor,
    weight: Tensor,
    cu_rows: Tensor | None = None,
    n_active: Tensor | None = None,
    starts: Tensor | None = None,
    *,
    rule: PrefixRule,
    bias: Tensor | None = None,
    vocabulary: Vocabulary | None = None,
    noise: Noise | None = None,
    log_odds: bool = False,
    entropy: bool = False,
) -> None:
    """Compiles the GPU kernels for calls of the head operations like this one, with any number of rows.

    As `warmup_commit`, with the arguments of `linear_commit_prefix`, and `entropy` of `linear_token_stats`. Covered are
    calls with any number of rows, sequences and ids. Other kernels are used for another dtype or hidden size, where a
    stride stops or starts being a multiple of 16 elements or an address one of 16 bytes, for a batch instead of packed
    rows, with other optional arguments present, with an `id_offset` that is no multiple of 4 if there is noise, for a
    rule with a floor instead of one without, and for another ``snap`` or ``no_delimiter``.

    Examples
    --------
    >>> import torch
    >>> from lsp_kernels import PrefixRule, warmup_head
    >>> warmup_head(torch.zeros(4, 16), torch.zeros(100, 16), rule=PrefixRule(snap=False))
    """
    sequences = (cu_rows, n_active, starts)
    linear_commit_prefix(
        hidden, weight, *sequences, rule=rule, bias=bias, vocabulary=vocabulary
    )  # checks the arguments
    if hidden.device.type != "cuda" or triton_reason(hidden.device) is not None:
        return
    from .triton.warmup import compile_head

    with torch.cuda.device(hidden.device):
        operands = (hidden, weight, bias, sequences, tables_of(vocabulary), rule.arguments)
        compile_head(*operands, noise is not None, log_odds, entropy)
