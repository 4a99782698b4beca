"""The data sets of the behaviours that are learnt without an environment."""

from __future__ import annotations

from attrs import evolve

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.demos.demonstrations import Demonstrations, load_demonstrations
from trajtrainer.settings.run import RunSettings


def with_recorded_names(settings: RunSettings) -> RunSettings:
    """Return settings in which the behaviour of a data set that ``default_settings`` has is listed by its own name.

    Only where no behaviour is listed: then the recordings tell what there is.

    Raises:
        DemonstrationError: the recordings cannot be read.
    """
    default = settings.default_settings
    if settings.behaviors or default is None or not default.is_offline:
        return settings
    name = load_demonstrations(default.dataset, max_steps=1).name.partition("?")[0]
    return evolve(settings, behaviors={name: default})


def load_datasets(settings: RunSettings, max_steps: int | None = None) -> dict[str, Demonstrations]:
    """Return the data set of each behaviour that is learnt from one; nothing for a run that does not learn.

    Args:
        settings: of the run.
        max_steps: how much to read of each, to see whether it is there and fits together; None for all.

    Raises:
        DemonstrationError: files are missing, damaged or do not fit together; the message names all behaviours.
    """
    found: dict[str, Demonstrations] = {}
    faults = []
    if settings.checkpoint_settings.inference:
        return found
    for name, behavior in settings.behaviors.items():
        if behavior.is_offline:
            try:
                found[name] = load_demonstrations(behavior.dataset, max_steps=max_steps)
            except DemonstrationError as error:
                faults.append(f"Behavior {name!r}, dataset: {error}")
    if faults:
        raise DemonstrationError("\n".join(faults))
    return found
