"""``symmetry``: how an agent's observations and actions change in a mirror image of the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import field, frozen

from trajtrainer.settings.checks import Fault, mismatch, raise_faults, satisfies
from trajtrainer.settings.network import NetworkSettings

_EXCHANGE = "each index from 0 on exactly once, swapped in pairs or left in place"


def _exchanges(places: Sequence[int]) -> bool:
    """Return whether this is a permutation that is its own inverse."""
    return sorted(places) == list(range(len(places))) and all(places[place] == i for i, place in enumerate(places))


@frozen
class MirrorSettings:
    """How to mirror a vector: element i becomes ``signs[i]`` times element ``indices[i]``.

    Attributes:
        indices: for each position, the index (from 0) of the element that moves there. By default, all elements stay in
            place.
        signs: 1 or -1 for each element. By default, all signs are 1.
    """

    indices: list[int] = field(factory=list, validator=satisfies(_exchanges, _EXCHANGE))
    signs: list[int] = field(
        factory=list, validator=satisfies(lambda signs: all(abs(sign) == 1 for sign in signs), "a list of 1 and -1")
    )

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())

    @property
    def size(self) -> int:
        """Number of elements; 0 if neither ``indices`` nor ``signs`` is given."""
        return len(self.indices) or len(self.signs)

    def _faults(self) -> Iterator[Fault]:
        if not self.indices or not self.signs:
            return
        if len(self.indices) != len(self.signs):
            expected = f"as many as indices ({len(self.indices)})"
            yield mismatch(("signs",), self.signs, expected)
        elif any(self.signs[place] != sign for place, sign in zip(self.indices, self.signs, strict=True)):
            yield mismatch(("signs",), self.signs, "the same sign for two elements that swap places")


@frozen
class SymmetrySettings:
    """A mirror symmetry of the task. It lets the algorithm also learn from the mirror image of each step.

    Observations and actions that are not listed do not change when mirrored.

    Attributes:
        observations: mirror image of each vector sensor, by the sensor's name or index (from 0).
        continuous_actions: mirror image of the continuous actions.
        discrete_actions: for each branch, the mirror images of its actions. ``[[0, 2, 1]]`` swaps left and right if
            they are actions 1 and 2 of the only branch.
        branches: for each branch, the index of the branch that takes its place. ``[1, 0]`` swaps two branches of the
            same size, such as those of a left and a right arm. By default, branches stay in place.
    """

    observations: dict[str, MirrorSettings] = field(factory=dict)
    continuous_actions: MirrorSettings = field(factory=MirrorSettings)
    discrete_actions: list[list[int]] = field(factory=list)
    branches: list[int] = field(factory=list, validator=satisfies(_exchanges, _EXCHANGE))

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())

    def _faults(self) -> Iterator[Fault]:
        actions, branches = self.discrete_actions, self.branches or list(range(len(self.discrete_actions)))
        if not actions:
            return
        if len(actions) != len(branches):
            expected = f"as many as branches ({len(branches)})"
            yield mismatch(("discrete_actions",), actions, expected)
            return
        for branch, (becomes, source) in enumerate(zip(actions, branches, strict=True)):
            places = list(range(len(becomes)))
            if sorted(becomes) != places or sorted(actions[source]) != places:
                same = "" if source == branch else f", as in branch {source}"
                expected = f"each action of the branch, numbered from 0, exactly once{same}"
                yield mismatch(("discrete_actions", str(branch)), becomes, expected)
            elif [becomes[action] for action in actions[source]] != places:
                expected = "numbers that give back the same actions when mirrored twice"
                yield mismatch(("discrete_actions", str(branch)), becomes, expected)


def faults_of_symmetry(symmetry: SymmetrySettings | None, network: NetworkSettings) -> Iterator[Fault]:
    """Yield a fault if ``hyperparameters.symmetry`` is combined with a memory, which cannot be mirrored."""
    if symmetry is not None and network.memory is not None:
        expected = "no symmetry with network_settings.memory, because a memory cannot be mirrored"
        yield mismatch(("hyperparameters", "symmetry"), {"symmetry": ...}, expected)
