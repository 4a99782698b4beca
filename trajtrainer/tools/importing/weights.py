"""Reads weights from files of other trainers, even malicious or damaged ones. No code in them is ever run."""

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
    f"it does not specify the activation after each of its layers. Pass --activation, one of {', '.join(ACTIVATIONS)}"
)
_MOST_BYTES = 2**28
_MOST_NAMED = 6
_MOST_NAMES = 10_000
_LONGEST_NAME = 200
_COUNT = "count"
_STATISTICS = ("mean", "var", "epsilon", "clip_obs")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and convert any error while it is being read to a single message.

    Raises:
        CheckpointError: the file is missing, too large, damaged, or would have to be unpickled.
    """
    try:
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles it did not write
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise NoCheckpointError(f"it has more than {_MOST_BYTES:,} bytes, more than any policy needs")
            check_size(file, LARGEST_DIRECTORY)
            yield file
    except TrajtrainerError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file {path}.") from error
    except OSError as error:
        # A truncated .zip that contains a .zip makes the reader seek to a negative position.
        if error.filename is None:
            raise _damaged(path, error) from error
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except NoCheckpointError as error:
        raise CheckpointError(f"{path} cannot be imported: {shortened(str(error))}.") from error
    except pickle.UnpicklingError as error:
        with path.open("rb") as file:  # check whether the file has pickled objects other than tensors or is garbage
            is_pickled = "GLOBAL" in str(error) or file.read(1) == pickle.PROTO
        if not is_pickled:
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path} contains pickled objects, which could run code, so it was not loaded. If you trust it, save only "
            "its weights:\n"
            f'  model = torch.load("{path.name}", weights_only=False)\n'
            '  torch.save(model.state_dict(), "weights.pt")'
        ) from error
    except Exception as error:  # with damaged files, the zip reader and the unpickler may raise any exception
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    reason, _, _ = first_line(error).partition(". ")  # keep only the first sentence of torch's message
    return CheckpointError(
        f"{path} cannot be read: it is damaged, or not a file of weights (.zip of Stable-Baselines3, .pt, .pth, "
        f".safetensors, .onnx). No code was run. ({reason})"
    )


def load_safetensors(source: BinaryIO) -> dict[str, Tensor]:
    """Load the tensors of a ``.safetensors`` file.

    Raises:
        NoCheckpointError: the package safetensors is not installed.
        Exception: the file is damaged. The type of the exception depends on the damage.
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
    """A state dict from which layers are removed one by one. Layers that remain at the end are unsupported.

    Args:
        content: name -> tensor.

    Raises:
        NoCheckpointError: ``content`` is not a state dict, or has NaN or infinite numbers.
    """

    def __init__(self, content: object) -> None:
        if not isinstance(content, Mapping) or not content:
            raise NoCheckpointError(f"expected the weights of a network, found a {type(content).__name__}")
        if len(content) > _MOST_NAMES:
            raise NoCheckpointError(f"it has {len(content):,} tensors, expected at most {_MOST_NAMES:,}")
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise NoCheckpointError(
                    f"expected a mapping from names to tensors, but {name!r} is a {type(value).__name__}"
                )
            if len(name) > _LONGEST_NAME:
                raise NoCheckpointError(
                    f"one of its tensors has a name of {len(name):,} characters, expected at most {_LONGEST_NAME}"
                )
        check_tensors(content, set(), finite=True)
        self._left: dict[str, Tensor] = {name: value.to(torch.float32) for name, value in content.items()}

    def names(self, prefix: str) -> list[str]:
        """Return the names of the remaining tensors that start with ``prefix``."""
        return [name for name in self._left if name.startswith(prefix)]

    def drop(self, *prefixes: str) -> None:
        """Remove tensors that acting does not need."""
        for name in [name for name in self._left if name.startswith(prefixes)]:
            del self._left[name]

    def take(self, name: str) -> Tensor | None:
        """Remove and return a tensor. Return None if there is no tensor with this name."""
        return self._left.pop(name, None)

    def linear(self, name: str) -> nn.Linear:
        """Remove a linear layer's tensors, and return the layer.

        Raises:
            NoCheckpointError: there is no linear layer with this name.
        """
        weight, bias = self._layer(name, rank=2, kind="a linear layer")
        return linear(weight, bias)

    def convolution(self, name: str, kernel: int, stride: int) -> nn.Conv2d:
        """Remove a convolution's tensors, and return the layer, which has no padding.

        Raises:
            NoCheckpointError: there is no convolution with this name and kernel size.
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
        """Remove the tensors of an ``nn.Sequential`` that alternates linear layers and activations; return the layers.

        Raises:
            NoCheckpointError: layers are at other positions, or are not linear.
        """
        pattern = re.compile(rf"{re.escape(prefix)}\.(\d{{1,4}})\.")
        places = sorted({int(match[1]) for name in self._left if (match := pattern.match(name))})
        for number, place in enumerate(places):
            if place != 2 * number:
                raise NoCheckpointError(
                    f"the layers of {prefix} are at {places}; expected linear layers with an activation between "
                    "them: 0, 2, 4, ... Other layers are not supported"
                )
        return [self.linear(f"{prefix}.{place}") for place in places]

    def finish(self) -> None:
        """Check that no tensors remain.

        Raises:
            NoCheckpointError: there are unsupported layers.
        """
        if self._left:
            named = ", ".join(list(self._left)[:_MOST_NAMED])
            more = f" and {len(self._left) - _MOST_NAMED} more" if len(self._left) > _MOST_NAMED else ""
            raise NoCheckpointError(f"it has unsupported layers: {named}{more}")


def activated(layers: Iterable[nn.Linear], activation: str) -> list[nn.Module]:
    """Return the layers with an activation after each."""
    return [part for layer in layers for part in (layer, ACTIVATIONS[activation]())]


def how_to_save(source: str) -> str:
    """Return two lines of Python that save the statistics of a ``VecNormalize``."""
    return (
        f'  import numpy, pathlib, pickle; v = pickle.loads(pathlib.Path("{source}").read_bytes())\n'
        '  numpy.savez("stats.npz", mean=v.obs_rms.mean, var=v.obs_rms.var, count=v.obs_rms.count, '
        "epsilon=v.epsilon, clip_obs=v.clip_obs)"
    )


def read_statistics(path: Path) -> ObservationStatistics:
    """Read normalization statistics: ``mean``, ``var``, ``epsilon``, ``clip_obs``, and optionally ``count``.

    Raises:
        CheckpointError: the file is missing, damaged, or of another kind.
    """
    with opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise NoCheckpointError(
                "it is not an .npz file. A pickle could run code, so it is not loaded. If you trust it, save "
                "its content:\n" + how_to_save(path.name)
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
            raise NoCheckpointError(f"the shapes of its arrays do not match: {shapes}")
        epsilon, clip, *count = (float(value[0]) for value in single)
        if not all(np.isfinite(value).all() for value in found.values()) or (variance <= -epsilon).any() or clip <= 0:
            raise NoCheckpointError("it has numbers that are not finite, or a variance or limit that is not above 0")
    mean, variance = (torch.from_numpy(each.astype(np.float32)) for each in (mean, variance + epsilon))
    return ObservationStatistics(mean, variance, clip, count[0] if count else None)
