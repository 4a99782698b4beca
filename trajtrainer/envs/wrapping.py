"""Wrappers of Gymnasium's and PettingZoo's kind, put around an environment by their names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.factories import check_signature, factory_of, import_first, keyword_arguments
from trajtrainer.envs.user_code import place_of_error
from trajtrainer.settings.environment import wrapper_words

# What Gymnasium asks of who uses its Atari preprocessing, as an option of ours.
_HINTS = {"frame-skip": " Give --env-args frameskip=1.", "opencv-python": " Or: pip install 'trajtrainer[atari]'."}


def wrap(env: Any, wrappers: Sequence[str] | None, bases: tuple[type, ...]) -> Any:
    """Return an environment within its wrappers, the first one innermost.

    Args:
        env: to be wrapped.
        wrappers: each as ``package.module:Wrapper key=value ...``: a class or a function that is called with the
            environment and the arguments.
        bases: what an environment of this kind is an instance of, wrapped or not.

    Raises:
        SettingsError: a wrapper is not there, is none, does not take its arguments, or refuses the environment.
        EnvironmentFaultError: its module cannot be imported, as its code fails.
    """
    try:
        for text in wrappers or ():
            env = _wrapped(env, text, bases)
    except BaseException:
        env.close()
        raise
    return env


def _wrapped(env: Any, text: str, bases: tuple[type, ...]) -> Any:
    target, *words = wrapper_words(text)
    what = f"--wrapper {target}"
    module, _, name = target.partition(":")
    wrapper: Any = factory_of(import_first([module], what), name, what)
    expected = f"a wrapper of {' or '.join(f'{base.__module__}.{base.__qualname__}' for base in bases)}"
    if isinstance(wrapper, type) and not issubclass(wrapper, bases):
        raise SettingsError(f"{what} is no wrapper of such environments: expected {expected}.")
    arguments = keyword_arguments(words, what)
    check_signature(partial(wrapper, env), what, arguments, f"behind it: --wrapper {target} key=value")
    try:
        wrapped = wrapper(env, **arguments)
    except Exception as error:
        hint = next((hint for word, hint in _HINTS.items() if word in str(error)), "")
        told, place = str(error).rstrip("."), place_of_error(error)
        where = f" ({place})" if place else ""
        raise SettingsError(
            f"{what} cannot be put around {env}: {type(error).__name__}: {told}{where}.{hint}"
        ) from error
    if not isinstance(wrapped, bases):
        raise SettingsError(f"{what} is no wrapper: it returned a {type(wrapped).__qualname__}, expected {expected}.")
    return wrapped
