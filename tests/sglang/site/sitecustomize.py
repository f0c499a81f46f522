"""What SGLang looks for when it is imported, and what this environment does not have; its child processes need it too.

Two operators of torchvision, whose library needs another build of torch, and the CPU kernels that SGLang takes from
vLLM, of which it calls the two norms alone.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

import torch


def _norm(x, weight, epsilon):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def rms_norm(out, x, weight, epsilon) -> None:
    out.copy_(_norm(x, weight, epsilon))


def fused_add_rms_norm(x, residual, weight, epsilon) -> None:
    residual.add_(x)
    x.copy_(_norm(residual, weight, epsilon))


def rotary_embedding(*_) -> None:
    raise NotImplementedError("the stand-in has no rotary embedding")


def _stand_in(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return module


def _install() -> None:
    vllm, operators = _stand_in("vllm"), _stand_in("vllm._custom_ops")
    vllm._custom_ops = operators
    vllm.__path__ = []
    for function in (rms_norm, fused_add_rms_norm, rotary_embedding):
        setattr(operators, function.__name__, function)


torchvision = torch.library.Library("torchvision", "DEF")  # kept: what it defines lives as long as it does
torchvision.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
torchvision.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
_install()
