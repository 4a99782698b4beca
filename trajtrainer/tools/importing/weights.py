"""Reads weights out of files of other trainers, also hostile and damaged ones. Nothing in them is ever run."""

import contextlib
import json
import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.archives import LARGEST_DIRECTORY
from trajtrainer.core.errors import CheckpointError, TrajtrainerError, first_line
from trajtrainer.core.filenames import open_regular
from trajtrainer.core.printable import shortened
from trajtrainer.policies.checkpoints.file import NoCheckpointError, check_size, check_tensors, load_tensors
from trajtrainer.tools.importing.policy import ACTIVATIONS, Hints, ObservationStatistics, linear

_MOST_BYTES = 2**28
_LONGEST_HEADER = 2**24
_MOST_NAMED = 6
_MOST_NAMES = 10_000
_LONGEST_NAME = 200
_MOST_DIMENSIONS = 8
_SAFE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_NEEDED = ("mean", "var", "epsilon", "clip_obs")
_COUNT = "count"
_SUFFIX = ".npy"
_MOST_NUMBERS = 10_000_000


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


def load(source: IO[bytes]) -> Any:
    """The content of a file of ``torch.save``: tensors and plain data only.

    Raises:
        NoCheckpointError: it is made to fill the memory.
        Exception: it does not load; the type depends on what is wrong.
    """
    content = load_tensors(source, LARGEST_DIRECTORY)
    check_tensors(content, set(), finite=False)
    return content


def load_safetensors(source: IO[bytes]) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file: a header in JSON, then their numbers.

    Raises:
        NoCheckpointError: a tensor of another type than floats.
        Exception: it is damaged; the type depends on what is wrong.
    """
    length = int.from_bytes(source.read(8), "little")
    if length > _LONGEST_HEADER:
        raise NoCheckpointError(f"its header has {length:,} bytes, as no .safetensors file has")
    header = json.loads(source.read(length))
    header.pop("__metadata__", None)
    _check_names(header)
    data = bytearray(source.read())
    found = {}
    for name, entry in header.items():
        if entry["dtype"] not in _SAFE_DTYPES:
            raise NoCheckpointError(f"{name} is of type {entry['dtype']}, expected floats")
        if len(entry["shape"]) > _MOST_DIMENSIONS:
            raise NoCheckpointError(f"{name} has {len(entry['shape'])} dimensions, expected at most {_MOST_DIMENSIONS}")
        dtype, shape = _SAFE_DTYPES[entry["dtype"]], [int(size) for size in entry["shape"]]
        start, end = entry["data_offsets"]
        if not 0 <= start <= end <= len(data) or math.prod(shape) * dtype.itemsize != end - start:
            raise NoCheckpointError(f"{name} of shape {shape} does not have as many bytes as it should")
        number = math.prod(shape)
        flat = torch.frombuffer(data, dtype=dtype, count=number, offset=start) if number else torch.empty(0)
        found[name] = flat.reshape(shape)
    claimed = sum(tensor.nbytes for tensor in found.values())
    if claimed > len(data):
        raise NoCheckpointError(f"its tensors have {claimed:,} bytes together, and the file has {len(data):,} for them")
    return found


def _check_names(content: Mapping[Any, object]) -> None:
    """Reject more or longer names than those of any policy.

    Raises:
        NoCheckpointError: there are.
    """
    if len(content) > _MOST_NAMES:
        raise NoCheckpointError(f"it has {len(content):,} tensors, expected at most {_MOST_NAMES:,}")
    longest = max((len(name) for name in content if isinstance(name, str)), default=0)
    if longest > _LONGEST_NAME:
        raise NoCheckpointError(
            f"one of its tensors has a name of {longest:,} characters, expected at most {_LONGEST_NAME}"
        )


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
        _check_names(content)
        self._left: dict[str, Tensor] = {}
        for name, value in content.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise NoCheckpointError(f"expected tensors by name, found {name!r}: a {type(value).__name__}")
            self._left[name] = value.to(torch.float32)
        check_tensors(self._left, set(), finite=True)

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


def hinted_activation(hints: Hints) -> str:
    """The activation that the user gives.

    Raises:
        NoCheckpointError: none is given.
    """
    if hints.activation is None:
        raise NoCheckpointError(
            "it does not say what follows each of its layers. Give --activation, one of " + ", ".join(ACTIVATIONS)
        )
    return hints.activation


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
        with zipfile.ZipFile(file) as archive:
            held = {name.removesuffix(_SUFFIX) for name in archive.namelist()}
            if missing := [name for name in _NEEDED if name not in held]:
                raise NoCheckpointError(
                    f"it lacks {', '.join(missing)}. Save it with\n{how_to_save('vecnormalize.pkl')}"
                )
            found = {name: _array(archive, name) for name in (*_NEEDED, _COUNT) if name in held}
        mean, variance = found["mean"].ravel(), found["var"].ravel()
        single = [value for name, value in found.items() if name not in ("mean", "var")]
        if mean.shape != variance.shape or any(value.size != 1 for value in single):
            shapes = ", ".join(f"{name} {value.shape}" for name, value in found.items())
            raise NoCheckpointError(f"the shapes of its arrays do not fit each other: {shapes}")
        variance = variance + found["epsilon"].item()
        clip, count = float(found["clip_obs"].item()), float(found[_COUNT].item()) if _COUNT in found else None
        if not all(np.isfinite(value).all() for value in found.values()) or (variance <= 0).any() or not clip > 0:
            raise NoCheckpointError("it has numbers that are not finite, or a variance or limit that is not above 0")
    return ObservationStatistics(_floats(mean), _floats(variance), clip, count)


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array, after a look at the size that its header claims."""
    with archive.open(name + _SUFFIX) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.kind not in "fiu" or np.prod(shape, dtype=np.float64) > _MOST_NUMBERS:
        raise NoCheckpointError(f"its {name} is of type {dtype} and shape {shape}, expected numbers")
    with archive.open(name + _SUFFIX) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _floats(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))
