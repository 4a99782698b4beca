"""Reads weights out of files of other trainers, also hostile and damaged ones. Nothing in them is ever run."""

import contextlib
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.archives import LARGEST_DIRECTORY
from trajtrainer.core.errors import CheckpointError, TrajtrainerError, first_line
from trajtrainer.core.filenames import open_regular
from trajtrainer.core.printable import shortened
from trajtrainer.policies.checkpoints.file import NoCheckpointError, check_size, check_tensors
from trajtrainer.tools.importing.policy import ACTIVATIONS, ObservationStatistics, linear

NO_ACTIVATION: Final = (
    f"it does not say what follows each of its layers. Give --activation, one of {', '.join(ACTIVATIONS)}"
)
_MOST_BYTES = 2**28
_MOST_NAMED = 6
_MOST_NAMES = 10_000
_LONGEST_NAME = 200
_COUNT = "count"
_STATISTICS = ("mean", "var", "epsilon", "clip_obs")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; whatever is wrong with it becomes one message.

    Raises:
        CheckpointError: it is missing, too large, damaged, or needs to be unpickled.
    """
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders at pickles of other programs
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise NoCheckpointError(f"it has more than {_MOST_BYTES:,} bytes, more than any policy needs")
            check_size(file, LARGEST_DIRECTORY)
            yield file
    except TrajtrainerError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file {path}.") from error
    except OSError as error:
        if error.filename is None:  # a .zip cut off behind the .zip in it is read at places before its beginning
            raise _damaged(path, error) from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except NoCheckpointError as error:
        raise CheckpointError(f"{path} cannot be imported: {shortened(str(error))}.") from error
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:  # torch met something else than tensors, and no mere rubbish
            is_pickled = "GLOBAL" in str(error) or file.read(1) == pickle.PROTO
        if not is_pickled:
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path} holds pickled objects, which could be code, so it was not loaded. If you trust it, save its "
            "weights alone:\n"
            f'  model = torch.load("{path.name}", weights_only=False)\n'
            '  torch.save(model.state_dict(), "weights.pt")'
        ) from error
    except Exception as error:  # damaged files make the zip reader and the unpickler raise anything
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason, _, _ = first_line(error).partition(". ")  # the rest is about torch's own internals
    return CheckpointError(
        f"{path} cannot be read: it is damaged, or not a file of weights (.zip of Stable-Baselines3, .pt, .pth, "
        f".safetensors, .onnx). No code was run. ({reason})"
    )


def load_safetensors(source: BinaryIO) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file.

    Raises:
        NoCheckpointError: the library for them is not installed.
        Exception: it is damaged; the type depends on what is wrong.
    """
    try:
        import safetensors.torch
    except ImportError as error:
        raise NoCheckpointError(
            "this needs the package safetensors, which is not installed. Install it with: pip install "
            "'trajtrainer[import]'"
        ) from error
    return safetensors.torch.load(source.read())


class Weights:
    """A state dict out of which layers are taken. What is left in the end is unknown.

    Args:
        content: name -> tensor.

    Raises:
        NoCheckpointError: it is none, or has NaN or infinite numbers.
    """

    def __init__(self, content: object) -> None:
        if not isinstance(content, Mapping) or not content:
            raise NoCheckpointError(f"expected the weights of a network, found a {type(content).__name__}")
        if len(content) > _MOST_NAMES:
            raise NoCheckpointError(f"it has {len(content):,} tensors, expected at most {_MOST_NAMES:,}")
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise NoCheckpointError(f"expected tensors by name, found {name!r}: a {type(value).__name__}")
            if len(name) > _LONGEST_NAME:
                raise NoCheckpointError(
                    f"one of its tensors has a name of {len(name):,} characters, expected at most {_LONGEST_NAME}"
                )
        check_tensors(content, set(), finite=True)
        self._left: dict[str, Tensor] = {name: value.to(torch.float32) for name, value in content.items()}

    def names(self, prefix: str = "") -> list[str]:
        """The names of what is left that begin so."""
        return [name for name in self._left if name.startswith(prefix)]

    def drop(self, *prefixes: str) -> None:
        """Leave out what acting does not need."""
        for name in [name for name in self._left if name.startswith(prefixes)]:
            del self._left[name]

    def take(self, name: str) -> Tensor | None:
        """A tensor, None if it is not there."""
        return self._left.pop(name, None)

    def linear(self, name: str) -> nn.Linear:
        """A linear layer.

        Raises:
            NoCheckpointError: there is none of this name.
        """
        weight, bias = self._layer(name, rank=2, kind="a linear layer")
        return linear(weight, bias)

    def convolution(self, name: str, kernel: int, stride: int) -> nn.Conv2d:
        """A convolution without padding.

        Raises:
            NoCheckpointError: there is none of this name and kernel.
        """
        weight, bias = self._layer(name, rank=4, kind="a convolution")
        out, channels, *sides = weight.shape
        if sides != [kernel, kernel]:
            raise NoCheckpointError(f"{name}.weight has a kernel of {sides}, expected {[kernel, kernel]}")
        layer = nn.Conv2d(channels, out, kernel, stride, device="meta")
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
        return layer

    def _layer(self, name: str, rank: int, kind: str) -> tuple[Tensor, Tensor]:
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if weight is None:
            found = ", ".join(list(self._left)[:_MOST_NAMED]) or "nothing"
            raise NoCheckpointError(f"it has no {name}.weight, but {found}")
        if weight.dim() != rank or not weight.numel():
            raise NoCheckpointError(f"{name}.weight has the shape {tuple(weight.shape)}, which is not that of {kind}")
        bias = torch.zeros(len(weight)) if bias is None else bias
        if bias.shape != weight.shape[:1]:
            raise NoCheckpointError(
                f"{name}.bias has the shape {tuple(bias.shape)}, expected {tuple(weight.shape[:1])}"
            )
        return weight, bias

    def sequence(self, prefix: str) -> list[nn.Linear]:
        """The linear layers of an ``nn.Sequential`` with an activation between each two.

        Raises:
            NoCheckpointError: they are at other places, or are no linear layers.
        """
        pattern = re.compile(rf"{re.escape(prefix)}\.(\d{{1,4}})\.")
        places = sorted({int(match[1]) for name in self._left if (match := pattern.match(name))})
        for number, place in enumerate(places):
            if place != 2 * number:
                raise NoCheckpointError(
                    f"the layers of {prefix} are at {places}; expected linear layers with an activation between "
                    "them: 0, 2, 4, ... Others are not supported"
                )
        return [self.linear(f"{prefix}.{place}") for place in places]

    def finish(self) -> None:
        """Reject what has not been taken.

        Raises:
            NoCheckpointError: there are unknown layers.
        """
        if self._left:
            named = ", ".join(list(self._left)[:_MOST_NAMED])
            more = f" and {len(self._left) - _MOST_NAMED} more" if len(self._left) > _MOST_NAMED else ""
            raise NoCheckpointError(f"it has unsupported layers: {named}{more}")


def activated(layers: Iterable[nn.Linear], activation: str) -> list[nn.Module]:
    """The layers with an activation behind each."""
    return [part for layer in layers for part in (layer, ACTIVATIONS[activation]())]


def how_to_save(source: str) -> str:
    """The two lines that save the statistics of a ``VecNormalize``."""
    return (
        f'  import numpy, pathlib, pickle; v = pickle.loads(pathlib.Path("{source}").read_bytes())\n'
        '  numpy.savez("stats.npz", mean=v.obs_rms.mean, var=v.obs_rms.var, count=v.obs_rms.count, '
        "epsilon=v.epsilon, clip_obs=v.clip_obs)"
    )


def read_statistics(path: Path) -> ObservationStatistics:
    """The statistics: ``mean``, ``var``, ``epsilon``, ``clip_obs``, and ``count`` if it is there.

    Raises:
        CheckpointError: the file is missing, damaged, or another one.
    """
    with opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise NoCheckpointError(
                "it is not an .npz file. A pickle could be code and is not loaded. If you trust it, save its content:\n"
                + how_to_save(path.name)
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            if missing := [name for name in _STATISTICS if name not in arrays]:
                raise NoCheckpointError(
                    f"it lacks {', '.join(missing)}. Save it with\n{how_to_save('vecnormalize.pkl')}"
                )
            found = {name: arrays[name].astype(np.float64) for name in (*_STATISTICS, _COUNT) if name in arrays}
        mean, variance, *single = (each.ravel() for each in found.values())
        if mean.shape != variance.shape or any(value.size != 1 for value in single):
            shapes = ", ".join(f"{name} {value.shape}" for name, value in found.items())
            raise NoCheckpointError(f"the shapes of its arrays do not fit each other: {shapes}")
        epsilon, clip, *count = (float(value[0]) for value in single)
        if not all(np.isfinite(value).all() for value in found.values()) or (variance <= -epsilon).any() or clip <= 0:
            raise NoCheckpointError("it has numbers that are not finite, or a variance or limit that is not above 0")
    mean, variance = (torch.from_numpy(each.astype(np.float32)) for each in (mean, variance + epsilon))
    return ObservationStatistics(mean, variance, clip, count[0] if count else None)
