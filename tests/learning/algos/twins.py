"""Compares twins with their references: what both compute, losses, gradients and optimizer states, over shapes."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trajtrainer

Numbers = dict[str, Any]  # what -> tensor, array or number
Tolerance = tuple[float, float, bool]
PACKAGE = Path(trajtrainer.__file__).parent


class Suite:
    """The comparisons of one test module.

    Attributes:
        cases: parameters of a test: comparison, shape, tolerance.
        twins: what is compared.
    """

    def __init__(self) -> None:
        self.cases: list[Any] = []
        self.twins: set[Any] = set()

    def twin(
        self,
        ours: Any,
        shapes: Iterable[Any] = (None,),
        *,
        rtol: float = 1e-5,
        atol: float = 1e-6,
        by_largest: bool = False,
    ) -> Callable[[Any], Any]:
        """Enter a function that gives, for one of the shapes, what the twin and what the reference say.

        ``by_largest`` measures the tolerance of a tensor's entries by the largest of them, as befits gradients.
        """

        def enter(compare: Any) -> Any:
            self.twins.add(ours)
            for shape in shapes:
                name = f"{ours.__qualname__}-{compare.__name__}-{shape}"
                self.cases.append(pytest.param(compare, shape, (rtol, atol, by_largest), id=name))
            return compare

        return enter


def check(compare: Any, shape: Any, tolerance: Tolerance) -> None:
    rtol, atol, by_largest = tolerance
    found, expected = compare(shape)
    assert found.keys() == expected.keys()
    assert found
    for what, value in expected.items():
        theirs, ours = torch.as_tensor(value).detach(), torch.as_tensor(found[what]).detach()
        assert ours.dtype == theirs.dtype, what
        if by_largest:
            assert ours.shape == theirs.shape, what
            assert (ours - theirs).abs().max() <= atol + rtol * theirs.abs().max(), what
        else:
            torch.testing.assert_close({what: ours}, {what: theirs}, rtol=rtol, atol=atol)


def all_twins() -> set[Any]:
    """All twins of the package, which must name a reference that exists."""
    named = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            found = re.search(r"Twin of\s+``([\w.]+)``", ast.get_docstring(node) or "")
            if found:
                assert pkgutil.resolve_name(found[1]) is not None
                named.add(getattr(importlib.import_module(module), node.name))
    return named


def randn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def numbers(parameters: Iterable[Tensor], state: Any) -> Numbers:
    found: Numbers = {f"parameter {index}": parameter for index, parameter in enumerate(parameters)}
    for index, entry in state["state"].items():
        found |= {f"{name} {index}": value for name, value in entry.items()}
    return found
