"""What the peer calls the weights in its checkpoints (reference 1.11).

One direction only, from our ``state_dict`` to the peer's names: reading a checkpoint starts from the entries that our
networks have and looks for them. Our modules are registered in the peer's order, so the names come in its order too,
which is also the order of the parameters in its optimizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

NORMALIZER_ENTRIES = {
    "steps": "normalization_steps",
    "mean": "running_mean",
    "variance": "running_variance",
}
BRANCH_SIZES = "head.branch_sizes"  # not a weight of the peer's; it stands among its constants
# The peer's parameters of its policy that are never trained; they come first, in this order.
CONSTANTS = (
    "version_number",
    "is_continuous_int_deprecated",
    "continuous_act_size_vector",
    "discrete_act_size_vector",
    "act_size_vector_deprecated",
    "memory_size_vector",
)
_ENCODER = "observation_encoder."
_BRANCH = re.compile(r"_discrete_distribution\.branches\.(\d+)\.(weight|bias)$")
_BUFFER = re.compile(r"\.normalizer\.[a-z_]+$")
_SECOND = re.compile(r"(^|\.)(network_body|_encoder)\.processors\.")
_OF_BODY = re.compile(r"encoder\.(sensors\.\d+|attention|own)\.|layers\.(layers|plain|hyper)\.|memory\.lstm\.")
_ATTENTION = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "out": "fc_out"}


def is_parameter(name: str) -> bool:
    """Is an entry of our ``state_dict`` a parameter (that an optimizer may own), not a buffer?"""
    return name != BRANCH_SIZES and name.rsplit(".", 1)[-1] not in NORMALIZER_ENTRIES


def actor_names(actor: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """The peer's name of each entry of an actor's ``state_dict``.

    An entry with several names is the peer's entries side by side (along the first dimension): its branches.
    """
    names = _body_below(actor)
    branches = len(actor[BRANCH_SIZES])
    for ours in _below("head.", actor):
        layer, _, entry = ours.rpartition(".")
        if layer == "discrete":
            distribution = "action_model._discrete_distribution"
            names[f"head.{ours}"] = tuple(f"{distribution}.branches.{k}.{entry}" for k in range(branches))
        elif ours != "branch_sizes":
            theirs = ours.replace("log_sigma_layer", "log_sigma")
            names[f"head.{ours}"] = (f"action_model._continuous_distribution.{theirs}",)
    return names


def critic_names(critic: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """The peer's name of each entry of a critic's ``state_dict``; of a shared critic the heads alone."""
    names = _body_below(critic)
    for ours in _below("heads.linears.", critic):
        names[f"heads.linears.{ours}"] = (f"value_heads.value_heads.{ours}",)
    return names


def reward_names(network: Mapping[str, Tensor]) -> dict[str, str]:
    """The peer's names for a reward signal's network that is one ``NetworkBody`` (RND); others keep their own."""
    if not all(map(_OF_BODY.match, network)):
        return {ours: ours for ours in network}
    return {ours: f"_encoder.{theirs}" for ours, theirs in body_names(network).items()}


def body_names(body: Iterable[str]) -> dict[str, str]:
    """The peer's name of each entry of a ``NetworkBody``."""
    entries = list(body)
    resnets = {match[1] for name in entries if (match := re.match(r"encoder\.sensors\.(\d+)\.stages\.", name))}
    plain = len({match[1] for name in entries if (match := re.match(r"layers\.plain\.(\d+)\.", name))})
    return {name: _body_name(name, resnets, plain) for name in entries}


def second_name(theirs: str) -> str | None:
    """The peer registers the encoders of sensors twice; the second name, or None for entries with one name."""
    head, found, rest = theirs.partition(f"{_ENCODER}processors.")
    return f"{head}processors.{rest}" if found else None


def in_peer_order(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries of one of the peer's networks in its order, which differs from ours where branches are one layer here,
    and with the second names."""
    branches = {name: (int(match[1]), match[2] == "bias") for name in network if (match := _BRANCH.search(name))}
    sorted_branches = iter(sorted(branches, key=lambda name: branches[name]))
    names = [next(sorted_branches) if name in branches else name for name in network]
    return _with_second_names({name: network[name] for name in names})


def _with_second_names(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    whole: dict[str, Tensor] = {}
    twice: dict[str, Tensor] = {}
    for name, value in network.items():
        if twice and _ENCODER not in name:
            whole |= twice
            twice = {}
        whole[name] = value
        second = second_name(name)
        if second is not None:
            twice[second] = value
    return whole | twice


def peer_parameters(network: Iterable[str]) -> list[str]:
    """The parameters among the entries of one of the peer's networks, in the order of its optimizers."""
    return [name for name in network if not _BUFFER.search(name) and not _SECOND.search(name)]


def _body_below(module: Iterable[str]) -> dict[str, tuple[str, ...]]:
    names = body_names(_below("body.", module))
    return {f"body.{ours}": (f"network_body.{theirs}",) for ours, theirs in names.items()}


def _below(prefix: str, entries: Iterable[str]) -> list[str]:
    return [name.removeprefix(prefix) for name in entries if name.startswith(prefix)]


def _body_name(name: str, resnets: set[str], plain: int) -> str:
    part, _, rest = name.partition(".")
    if part == "memory":
        return f"lstm.{rest}"
    if part == "layers":
        return f"_body_endoder.{_layer_name(rest, plain)}"
    if rest.startswith("attention."):
        _, layer, entry = rest.split(".")
        return f"{_ENCODER}rsa.{_ATTENTION[layer]}.{entry}"
    if rest.startswith("own."):
        return f"{_ENCODER}x_self_encoder.seq_layers.0.{rest.rsplit('.', 1)[1]}"
    _, index, rest = rest.split(".", 2)
    return f"{_ENCODER}processors.{index}.{_sensor_name(rest, index in resnets)}"


def _layer_name(name: str, plain: int) -> str:
    """The peer counts the activations between the layers too."""
    parts = name.split(".")
    if parts[0] == "layers":
        return f"seq_layers.{2 * int(parts[1])}.{parts[2]}"
    if parts[0] == "plain":
        return f"layers.{2 * int(parts[1])}.{parts[2]}"
    hyper = f"layers.{2 * plain}"
    if parts[1] == "bias":
        return f"{hyper}.bias"
    if parts[1] == "weights":
        return f"{hyper}.hypernet.5.{parts[2]}"
    return f"{hyper}.hypernet.{2 * int(parts[3])}.{parts[4]}"


def _sensor_name(name: str, resnet: bool) -> str:
    parts = name.split(".")
    if parts[0] == "plugin":
        return name
    if parts[0] in NORMALIZER_ENTRIES:
        return f"normalizer.{NORMALIZER_ENTRIES[parts[0]]}"
    if parts[0] == "dense":
        return f"dense.{parts[1]}" if resnet else f"dense.0.{parts[1]}"
    if parts[0] == "convolutions":
        return f"conv_layers.{2 * int(parts[1])}.{parts[2]}"
    if parts[0] == "linear":
        return f"self_ent_encoder.seq_layers.0.{parts[1]}"
    stage = 4 * int(parts[1])  # a stage is convolution, pooling, two blocks
    if parts[2] == "convolution":
        return f"sequential.{stage}.{parts[3]}"
    convolution = {"first": 1, "second": 3}[parts[4]]
    return f"sequential.{stage + 2 + int(parts[3])}.layers.{convolution}.{parts[5]}"
