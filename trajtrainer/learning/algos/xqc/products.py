"""Matrix products by the faster of torch's two libraries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _find_onednn() -> Any:
    """The operation of oneDNN, through which torch's compiler runs linear layers; None if MKL is faster.

    Ordinary products of torch on x86 come from MKL, which does not use the full width of AMD's vector units if they are
    of 512 bits: with 512 rows and layers of 128 units it takes twice as long (AMD Zen 5, one core). Where they are of
    256 bits, MKL is as fast or faster: oneDNN takes 1.4 times as long on AMD Zen 3, and on Zen 4, which has the
    instructions of AVX-512, 1.0 to 1.2 times.
    """
    # Zen 5 has AVX-VNNI, and Zen 4 has not. Older versions of torch cannot tell, and use MKL.
    able: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    wide = bool(able.get("avx512_f") and able.get("avx_vnni"))
    if wide and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        operation = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
        return None if operation is None else operation.default
    return None


_onednn = _find_onednn()


def product(x: Tensor, other: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """``x @ other.T + bias`` without gradient, then ReLU if ``relu``.

    Twin of ``torch.nn.functional.linear``. Each new combination of shapes and strides costs a millisecond once.

    Args:
        x: [a, c]; copied unless contiguous.
        other: [b, c]; copied unless it or its transpose is contiguous.
        bias: [b].
        relu: whether to apply it.
    """
    if _onednn is not None:
        # With other strides oneDNN falls back to a loop that takes a thousand times as long.
        if not (other.is_contiguous() or other.t().is_contiguous()):
            other = other.contiguous()
        found: Tensor = _onednn(x, other, bias, "relu" if relu else "none", [], "")
        return found
    found = torch.mm(x, other.t()) if bias is None else torch.addmm(bias, x, other.t())
    return found.relu_() if relu else found
