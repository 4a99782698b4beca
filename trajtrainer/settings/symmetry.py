"""``symmetry``: what an agent's observations and actions become in a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import field, frozen

from trajtrainer.settings.checks import Fault, mismatch, raise_faults, satisfies
from trajtrainer.settings.network import NetworkSettings

_EXCHANGE = "the numbers from 0 on, each once, that exchange places in pairs or keep their own"


def _exchanges(places: Sequence[int]) -> bool:
    """Whether this is a permutation that is its own inverse."""
    return sorted(places) == list(range(len(places))) and all(places[place] == i for i, place in enumerate(places))


@frozen
class MirrorSettings:
    """Some numbers in the mirror: number i becomes ``signs[i]`` times number ``indices[i]``.

    Attributes:
        indices: for each place, the number that comes there, counted from 0. Left out: all keep their places.
        signs: 1 or -1 for each number. Left out: 1 for all.
    """

    indices: list[int] = field(factory=list, validator=satisfies(_exchanges, _EXCHANGE))
    signs: list[int] = field(
        factory=list, validator=satisfies(lambda signs: all(abs(sign) == 1 for sign in signs), "a list of 1 and -1")
    )

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())

    @property
    def size(self) -> int:
        """Number of numbers; 0 if neither ``indices`` nor ``signs`` is given."""
        return len(self.indices) or len(self.signs)

    def _faults(self) -> Iterator[Fault]:
        if not self.indices or not self.signs:
            return
        if len(self.indices) != len(self.signs):
            expected = f"as many as indices ({len(self.indices)})"
            yield mismatch(("signs",), self.signs, expected)
        elif any(self.signs[place] != sign for place, sign in zip(self.indices, self.signs, strict=True)):
            yield mismatch(("signs",), self.signs, "the same sign for two numbers that exchange places")


@frozen
class SymmetrySettings:
    """A mirror under which the task stays the same. Each step is also learned from as its mirror image.

    Anything that is not listed is the same in the mirror.

    Attributes:
        observations: vector sensors, by name or by number from 0.
        continuous_actions: the continuous actions.
        discrete_actions: for each branch, the mirror images of its actions: ``[[0, 2, 1]]`` exchanges right and left if
            these are actions 1 and 2 of the only branch.
        branches: for each branch, the one that takes its place, if branches change places: ``[1, 0]`` exchanges two
            branches of the same size, such as those of a right and a left arm.
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
                same = "" if source == branch else f", as branch {source} has them"
                expected = f"the numbers of its actions from 0 on, each once{same}"
                yield mismatch(("discrete_actions", str(branch)), becomes, expected)
            elif [becomes[action] for action in actions[source]] != places:
                expected = "numbers that lead back to the same actions when they are mirrored twice"
                yield mismatch(("discrete_actions", str(branch)), becomes, expected)


def faults_of_symmetry(symmetry: SymmetrySettings | None, network: NetworkSettings) -> Iterator[Fault]:
    """``symmetry`` in ``hyperparameters`` is impossible for a policy with a memory."""
    if symmetry is not None and network.memory is not None:
        expected = "none with network_settings.memory, as the content of a memory has no mirror image"
        yield mismatch(("hyperparameters", "symmetry"), {"symmetry": ...}, expected)
