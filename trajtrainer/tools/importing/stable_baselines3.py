"""Reads the ``.zip`` file of a Stable-Baselines3 or sb3-contrib model.

It contains the weights in ``policy.pth``, and a JSON file ``data``. In ``data``, objects that JSON cannot represent are
pickled, and stored together with their type and attributes as text. The pickles are never loaded, because the text has
everything that is needed here.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from trajtrainer.policies.checkpoints.file import NoCheckpointError, load_tensors
from trajtrainer.tools.importing.policy import ACTIVATIONS, IMAGE_RANK, ForeignPolicy, Head, HeadKind, Hints, Part
from trajtrainer.tools.importing.weights import NO_ACTIVATION, Weights, activated

WEIGHTS: Final = "policy.pth"
_DATA = "data"
_LONGEST_DATA = 2**26
_LONGEST_ARRAY = 2**16
# Module of a supported policy class -> the algorithms that use it.
_MODULES = {
    "stable_baselines3.common.policies": "PPO or A2C of Stable-Baselines3",
    "stable_baselines3.sac.policies": "SAC of Stable-Baselines3",
    "stable_baselines3.td3.policies": "TD3 of Stable-Baselines3",
    "stable_baselines3.dqn.policies": "DQN of Stable-Baselines3",
    "sb3_contrib.common.maskable.policies": "MaskablePPO of sb3-contrib",
    "sb3_contrib.tqc.policies": "TQC of sb3-contrib",
}
_ONLY_TRPO = "cg_max_steps"  # identifies TRPO, which uses the same policy classes as PPO
_UNSUPPORTED = {
    "sb3_contrib.ars.policies": "ARS",
    "sb3_contrib.common.recurrent.policies": "RecurrentPPO",
    "sb3_contrib.qrdqn.policies": "QR-DQN",
    "sb3_contrib.crossq.policies": "CrossQ",
}
_EXTRACTORS = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
_PLACES = ("features_extractor", "actor.features_extractor", "q_net.features_extractor")
_NATURE_CNN = ((8, 4), (4, 2), (3, 1))  # kernel and stride of each convolution (Mnih et al. 2015)
_SDE_CLIP_MEAN = 2.0
_LARGEST_STEP = 2**62
_LONGEST_SHOWN = 200
_CLASSES = {type(make()).__name__: name for name, make in ACTIVATIONS.items()}
# A Dict of Boxes in Gymnasium's text form; older versions show it as an OrderedDict.
_PART = re.compile(r"""\(?(['"])([^'"\\]+)\1(?:: |, )Box\(([^()'":]+), \(([\d, ]+)\), (\w+)\)\)?""")
_AROUND_PARTS = re.compile(r"(?:OrderedDict\()?[\[{](?:, )*[\]}]\)?")
_NUMBER = re.compile(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)", re.IGNORECASE)


def read_stable_baselines3(archive: zipfile.ZipFile, hints: Hints) -> ForeignPolicy:
    """Read the policy of a Stable-Baselines3 or sb3-contrib model with MlpPolicy, CnnPolicy or MultiInputPolicy.

    Args:
        archive: the archive, which has a member ``WEIGHTS``.
        hints: information that the file may not contain.

    Raises:
        NoCheckpointError: the policy is of another kind, or required information is neither in the file nor in
            ``hints``.
        Exception: the file is damaged. The type of the exception depends on the damage.
    """
    data = _Data(archive)
    weights = Weights(load_tensors(io.BytesIO(archive.read(WEIGHTS))))
    place = next((name for name in _PLACES if weights.names(f"{name}.")), "")
    parts = tuple(_with_layers(part, weights, place) for part in data.parts)

    def body(hidden: list[nn.Linear], activation: str) -> list[nn.Module]:
        return activated(hidden, data.activation(activation, hints)) if hidden else []

    if weights.names("action_net."):
        weights.drop("value_net.", "mlp_extractor.value_net.", "vf_features_extractor.", "pi_features_extractor.")
        layers = body(weights.sequence("mlp_extractor.policy_net"), "tanh")
        layer, log_std = weights.linear("action_net"), weights.take("log_std")
        if log_std is None:
            head = Head(HeadKind.LOGITS, layer, branches=data.branches)
        elif data.arguments.get("squash_output", False):
            raise NoCheckpointError("it was trained with squash_output=True, which is not supported")
        else:
            head = Head(HeadKind.MEANS, layer, data.log_sigma(log_std, layer), data.bounds)
    elif weights.names("actor.latent_pi.") or weights.names("actor.log_std"):
        weights.drop("critic.", "critic_target.")
        layers = body(weights.sequence("actor.latent_pi"), "relu")
        noise = weights.take("actor.log_std")  # present only with gSDE, which has no layer for the standard deviations
        if noise is None:
            head = Head(HeadKind.SQUASHED, weights.linear("actor.mu"), weights.linear("actor.log_std"))
        elif data.arguments.get("clip_mean", _SDE_CLIP_MEAN) != _SDE_CLIP_MEAN:
            raise NoCheckpointError(f"its clip_mean is not {_SDE_CLIP_MEAN}, the only supported value")
        else:
            layer = weights.linear("actor.mu.0")
            head = Head(HeadKind.SQUASHED, layer, data.log_sigma(noise, layer))
    elif weights.names("actor.mu."):
        weights.drop("critic.", "critic_target.", "actor_target.")
        *hidden, layer = weights.sequence("actor.mu")
        layers, head = body(hidden, "relu"), Head(HeadKind.SQUASHED, layer)
    elif weights.names("q_net.q_net."):
        weights.drop("q_net_target.")
        *hidden, layer = weights.sequence("q_net.q_net")
        layers = body(hidden, "relu")
        head = Head(HeadKind.VALUES, layer, branches=data.branches)
    else:
        weights.finish()
        raise NoCheckpointError("it has no weights")
    weights.finish()
    return ForeignPolicy(data.trainer, nn.Sequential(*layers), head, parts, step=data.step)


def _with_layers(part: Part, weights: Weights, place: str) -> Part:
    """Return the part with the layers of NatureCNN, if it has such layers."""
    prefix = place if part.name is None else f"{place}.extractors.{part.name}"
    if not weights.names(f"{prefix}."):
        return part
    layers: list[nn.Module] = []
    for number, (kernel, stride) in enumerate(_NATURE_CNN):
        layers += [weights.convolution(f"{prefix}.cnn.{2 * number}", kernel, stride), nn.ReLU()]
    layers += [nn.Flatten(), weights.linear(f"{prefix}.linear.0"), nn.ReLU()]
    return replace(part, is_picture=True, layers=nn.Sequential(*layers))


class _Data:
    """The information about a model in ``data`` that can be read without unpickling.

    Attributes:
        trainer: description of the trainer.
        arguments: the policy's arguments. Those that are not plain data are in their text form.

    Raises:
        NoCheckpointError: the policy's class, feature extractor or action space is not supported.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        with archive.open(_DATA) as member:
            text = member.read(_LONGEST_DATA + 1)
        if len(text) > _LONGEST_DATA:
            raise NoCheckpointError(f"its description has more than {_LONGEST_DATA:,} bytes")
        content = json.loads(text)
        self._content: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
        if "MultiBinary" in str(self._part("action_space").get(":type:")):  # has outputs like Discrete
            raise NoCheckpointError("its action space is a MultiBinary, which is not supported")
        module = self._part("policy_class").get("__module__")
        if module in _UNSUPPORTED:
            raise NoCheckpointError(f"it is a policy of {_UNSUPPORTED[module]}, which is not supported")
        if module not in _MODULES:
            raise NoCheckpointError(
                f"its policy is a custom class (from the module {module!r}), not MlpPolicy, CnnPolicy or "
                "MultiInputPolicy"
            )
        self.trainer = "TRPO of sb3-contrib" if _ONLY_TRPO in self._content else _MODULES[module]
        arguments = self._content.get("policy_kwargs")
        self.arguments = arguments if isinstance(arguments, Mapping) else {":serialized:": ""}
        kind = str(self.arguments.get("features_extractor_class", _EXTRACTORS[0]))
        if not any(kind.endswith(f"{name}'>") or kind == name for name in _EXTRACTORS):
            raise NoCheckpointError(f"its features_extractor_class is {kind}, expected one of {', '.join(_EXTRACTORS)}")

    def _part(self, name: str) -> Mapping[str, Any]:
        part = self._content.get(name)
        return part if isinstance(part, Mapping) else {}

    @property
    def _has_arguments(self) -> bool:
        """True if the policy's arguments can be read without unpickling, as plain data or as text next to a pickle."""
        return ":serialized:" not in self.arguments or any(not name.startswith(":") for name in self.arguments)

    def activation(self, default: str, hints: Hints) -> str:
        """Return the name of the activation after each layer.

        Args:
            default: the activation if the policy has no ``activation_fn``.
            hints: contains the activation if it is not in the file.

        Raises:
            NoCheckpointError: neither the file nor ``hints`` has the activation, or they contradict each other.
        """
        text = str(self.arguments.get("activation_fn", ""))
        match = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", text)
        found = default if self._has_arguments and not text else _CLASSES.get(match[1]) if match else None
        found = found or hints.activation
        if found is None:
            raise NoCheckpointError(NO_ACTIVATION)
        if hints.activation not in (None, found):
            raise NoCheckpointError(
                f"according to the file, {found} follows each of its layers, not {hints.activation} (--activation)"
            )
        return found

    def log_sigma(self, log_std: Tensor, layer: nn.Linear) -> Tensor:
        """Return the logarithm of the standard deviations: [1, C], or with gSDE [E, C]."""
        if log_std.dim() == 1:
            shape = (1, layer.out_features)
        else:
            if not self._has_arguments:
                raise NoCheckpointError("its policy_kwargs are only pickled, so it is unknown how it uses gSDE")
            shape = (layer.in_features, layer.out_features)
            if self.arguments.get("use_expln", False):
                log_std = torch.where(log_std <= 0, log_std, (torch.log1p(log_std.clamp(min=0)) + 1.0).log())
        if (
            log_std.dim() > 2
            or (log_std.dim() == 2 and len(log_std) != shape[0])
            or log_std.shape[-1] not in (1, shape[1])
        ):
            raise NoCheckpointError(f"its log_std has the shape {tuple(log_std.shape)}, expected {shape}")
        return log_std.expand(shape).clone()

    @property
    def parts(self) -> list[Part]:
        """The policy's inputs, without the layers for images: a single Box, or each Box of a Dict.

        Raises:
            NoCheckpointError: the observation space is of another kind, or the entries of its Dict are unknown.
        """
        space = self._part("observation_space")
        kind = str(space.get(":type:", ".Box'>"))
        if kind.endswith(".Box'>"):
            shape = space.get("_shape")
            observed = tuple(int(size) for size in shape) if isinstance(shape, list) and shape else None
            low, high = (set(_NUMBER.findall(_shown(space.get(name)))) for name in ("low", "high"))
            is_byte = "uint8" in str(space.get("dtype")) and (low, high) == ({"0"}, {"255"})
            return [Part(None, observed, self._scale(observed or (), is_byte=is_byte and observed is not None))]
        text = str(space.get("spaces"))
        if not kind.endswith(".Dict'>"):
            raise NoCheckpointError(f"its observation space is a {kind}, expected a Box or a Dict of them")
        found = _PART.findall(text) if len(text) <= _LONGEST_ARRAY else []
        if not found or not _AROUND_PARTS.fullmatch(_PART.sub("", text)):
            raise NoCheckpointError(f"its observation space is {text[:_LONGEST_SHOWN]}, expected a Dict of only Box")
        return [
            Part(name, shape, self._scale(shape, is_byte=(bounds, dtype) == ("0, 255", "uint8")))
            for _, name, bounds, sizes, dtype in found
            for shape in [tuple(int(size) for size in sizes.split(",") if size.strip())]
        ]

    def _scale(self, shape: Sequence[int], *, is_byte: bool) -> float | None:
        """Return what a byte of 255 was scaled to. Stable-Baselines3 divides only three-dimensional images by 255."""
        if not is_byte:
            return None
        if len(shape) != IMAGE_RANK:
            return 255.0
        if not self._has_arguments:
            return None
        return 1.0 if self.arguments.get("normalize_images", True) else 255.0

    @property
    def bounds(self) -> tuple[Tensor, Tensor] | None:
        """Lower and upper bounds of the action space; None if it has none, or the file does not contain them."""
        low, high = (_numbers(self._part("action_space").get(name)) for name in ("low", "high"))
        if low is None or high is None or low.shape != high.shape or not (high > low).all():
            return None
        return (low, high) if bool(torch.isfinite(high - low).all()) else None

    @property
    def branches(self) -> tuple[int, ...] | None:
        """Sizes of a Discrete or MultiDiscrete action space; None if the file does not contain them."""
        space = self._part("action_space")
        sizes = _numbers(space.get("nvec", space.get("n")))
        return None if sizes is None else tuple(int(size) for size in sizes)

    @property
    def step(self) -> int:
        """Number of training steps."""
        step = self._content.get("num_timesteps")
        return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= _LARGEST_STEP else 0


def _shown(array: object) -> str:
    """Return numpy's text form of an array, or ``...`` if it is longer than what numpy would write."""
    text = str(array)
    return text if len(text) <= _LONGEST_ARRAY else "..."


def _numbers(text: object) -> Tensor | None:
    """Parse the numbers in numpy's text form of an array. Return None if the text is abbreviated."""
    shown = _shown(text)
    if text is None or "..." in shown:
        return None
    numbers = [float(number) for number in _NUMBER.findall(shown)]
    return torch.tensor(numbers, dtype=torch.float32) if numbers else None
