"""Policies that a behavior imitates. The registry row of the algorithm specifies how to create them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.plugins import resolve
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

if TYPE_CHECKING:
    from trajtrainer.learning.algos.acting import Policy


def make_expert(run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec) -> Policy | None:
    """Create the policy that a behavior imitates; None if its algorithm does not imitate a policy.

    Args:
        run: settings of the run.
        name: name of the behavior.
        settings: settings of the behavior.
        spec: behavior spec of the agents, with all sensors.

    Raises:
        SettingsError: the policy does not exist, or does not match the agents.
    """
    expert, faults = _expert(run, name, settings, spec)
    if faults:
        raise SettingsError("\n".join(faults))
    return expert


def check_experts(settings: RunSettings) -> None:
    """Check that all policies to imitate exist. Called before anything is started.

    Raises:
        SettingsError: some policies cannot be used; the message has one line per problem.
    """
    faults = [fault for name, each in settings.behaviors.items() for fault in _expert(settings, name, each, None)[1]]
    if faults:
        raise SettingsError("\n".join(faults))


def _expert(
    run: RunSettings, name: str, settings: TrainerSettings, spec: BehaviorSpec | None
) -> tuple[Policy | None, list[str]]:
    make = ALGORITHMS[settings.trainer_type].expert
    if make is None:
        return None, []
    with ALGORITHMS.blaming(settings.trainer_type):
        found: tuple[Policy | None, list[str]] = resolve(make)(run, name, settings, spec)
    return found
