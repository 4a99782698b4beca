"""Plants one cause at a time into games that are drawn at random."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.cli.test_export import checkpoint_of, saved
from tests.learning.nn.specs import network
from tests.policies.onnx.test_onnx import random_actor
from tests.tools.verify import games
from tests.tools.verify.games import Fault, Floats, Game, make_game, play, record
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.tools.verify.changes import Cause


class Planted(NamedTuple):
    """A pair to be verified, with what it was planted with."""

    name: str
    cause: Cause | None
    arguments: list[str]
    step: int | None = None


Random = np.random.Generator


def _pick(random: Random, things: list[Any]) -> Any:
    return things[int(random.integers(len(things)))]


def sensor_order(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, games.two_vectors)
    first = game.obs[0].shape[1]

    def exchanged(obs: list[Floats]) -> list[Floats]:
        both = np.concatenate(obs[::-1], axis=1)
        return [both[:, :first], both[:, first:]]

    return game, Fault(see=exchanged)


def stacking(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, games.stacked)
    size = game.obs[0].shape[1] // 3

    def reverse(x: Floats) -> Floats:
        return np.concatenate([x[:, 2 * size :], x[:, size : 2 * size], x[:, :size]], axis=1)

    def newest(x: Floats) -> Floats:
        return np.concatenate([np.zeros_like(x[:, : 2 * size]), x[:, 2 * size :]], axis=1)

    def copies(x: Floats) -> Floats:
        return np.tile(x[:, 2 * size :], 3)

    chosen = _pick(random, [reverse, newest, copies])
    return game, Fault(see=lambda obs: [chosen(obs[0]), *obs[1:]])


def _statistics(game: Game) -> tuple[Floats, Floats]:
    (normalizer,) = games.normalizers(game.actor)
    return normalizer.mean.numpy(), normalizer.standard_deviation().numpy()


def not_normalized(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, games.vectors)
    mean, deviation = _statistics(game)
    # What the model undoes.
    return game, Fault(see=lambda obs: [obs[0].clip(-5, 5) * deviation + mean])


def normalized_twice(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, games.vectors)
    mean, deviation = _statistics(game)
    return game, Fault(see=lambda obs: [((obs[0] - mean) / deviation).clip(-5, 5)])


def scale(random: Random) -> tuple[Game, Fault]:
    sensors = _pick(random, [games.two_vectors, games.pictures, games.lists])
    game = make_game(random, sensors)
    factor = float(np.exp(random.uniform(np.log(2.0), np.log(300.0)))) ** float(_pick(random, [-1, 1]))
    number = int(random.integers(len(game.obs)))
    return game, Fault(see=lambda obs: [x * np.float32(factor) if k == number else x for k, x in enumerate(obs)])


def mask(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, actions=_pick(random, [games.DISCRETE, games.BRANCHES]), masked=True)
    return game, Fault(mask=_pick(random, [np.zeros_like, np.logical_not]))


def layout(random: Random) -> tuple[Game, Fault]:
    game = make_game(random, games.pictures)
    count, channels, height, width = game.obs[0].shape

    def mixed(x: Floats) -> Floats:
        return x.transpose(0, 2, 3, 1).reshape(x.shape)

    def unmixed(x: Floats) -> Floats:
        return x.reshape(count, height, width, channels).transpose(0, 3, 1, 2)

    def upside_down(x: Floats) -> Floats:
        return x[:, :, ::-1]

    chosen = _pick(random, [mixed, unmixed, upside_down])
    return game, Fault(see=lambda obs: [chosen(obs[0]), *obs[1:]])


def timing(random: Random) -> tuple[Game, Fault]:
    sensors = _pick(random, [games.vectors, games.two_vectors, games.pictures, games.lists])
    return make_game(random, sensors), Fault(late=1)


def memory(random: Random) -> tuple[Game, Fault]:
    forgets = bool(random.random() < 0.5)
    return make_game(random, games.remembering), Fault(forgets=forgets, remembers=not forgets)


def mode(random: Random) -> tuple[Game, Fault]:
    return make_game(random), Fault()


def clean(random: Random) -> tuple[Game, Fault]:
    return make_game(random), Fault()


def other_policy(game: Game, random: Random, amount: float) -> Game:
    """A policy of another step, or of another training."""
    other = copy.copy(game)
    if amount >= 1.0:
        other.actor = random_actor(game.spec, seed=int(random.integers(1000, 2000)), **game.options)
        games.fresh(other.actor, game.obs)
        games.sharpen(other.actor, game.obs, random)
        return other
    other.actor = copy.deepcopy(game.actor)
    generator = torch.Generator().manual_seed(int(random.integers(1 << 30)))
    with torch.no_grad():
        for parameter in other.actor.parameters():
            noise = torch.empty_like(parameter).normal_(generator=generator)
            parameter.add_(amount * noise * (parameter.std() if parameter.numel() > 1 else 0.0))
    return other


def plant(
    folder: Path, name: str, cause: Cause | None, make: Callable[[Random], tuple[Game, Fault]], random: Random
) -> Planted:
    """Writes the model and the recording, and returns the arguments of the command."""
    folder.mkdir(parents=True)
    game, fault = make(random)
    model = game.model(folder / "Crawler.onnx")
    continuous, discrete = play(game, model, fault)
    demo = record(folder / "game.demo", game, continuous, discrete)
    arguments = [str(model), "--demo", str(demo)]
    if name == "mode":
        arguments += ["--actions", "deterministic" if game.drawn else "sampled"]
    return Planted(name, cause, arguments)


def plant_model(folder: Path, name: str, random: Random, *, older: bool) -> Planted:
    """The game has another model: an earlier checkpoint of the run, or one of nowhere."""
    folder.mkdir(parents=True)
    game = make_game(random)
    steps = [1000, 2000, 3000, 4000, 5000]
    run, settings = folder / "run", network(**game.options)
    chain = [game]
    for _ in steps[1:]:
        chain.insert(0, other_policy(chain[0], random, 0.15))
    for step, each in zip(steps, chain, strict=True):
        saved(run / "Crawler" / f"Crawler-{step}.pt", checkpoint_of(each.actor, settings))
    (run / "run_logs").mkdir()
    model = game.model(folder / "Crawler.onnx")
    number = int(random.integers(len(steps) - 1))
    inside = chain[number] if older else other_policy(game, random, 1.0)
    other = folder / "other.onnx"
    export_policy(inside.actor, inside.spec, other)
    demo = record(folder / "game.demo", game, *play(game, model, Fault(model=other)))
    planted = [str(model), "--demo", str(demo), *(["--run", str(run)] if older else [])]
    return Planted(name, Cause.MODEL, planted, steps[number] if older else None)


CAUSES: list[tuple[str, Cause, Callable[[Random], tuple[Game, Fault]] | None]] = [
    ("sensor order", Cause.SENSOR_ORDER, sensor_order),
    ("stacking", Cause.STACKING, stacking),
    ("not normalized", Cause.NORMALIZATION, not_normalized),
    ("normalized twice", Cause.NORMALIZATION, normalized_twice),
    ("scale", Cause.SCALE, scale),
    ("mask", Cause.MASK, mask),
    ("layout of pictures", Cause.PICTURES, layout),
    ("timing", Cause.TIMING, timing),
    ("memory", Cause.MEMORY, memory),
    ("mode", Cause.MODE, mode),
    ("older model", Cause.MODEL, None),
    ("different model", Cause.MODEL, None),
]


def plant_all(folder: Path, seed: int) -> list[Planted]:
    """The twelve causes, each once, in games that the seed draws."""
    random = np.random.default_rng(seed)
    found = []
    for name, cause, make in CAUSES:
        place = folder / name.replace(" ", "-")
        if make is None:
            found.append(plant_model(place, name, random, older=name == "older model"))
        else:
            found.append(plant(place, name, cause, make, random))
    return found


def plant_none(folder: Path, seed: int, count: int) -> list[Planted]:
    """Games without a fault."""
    random = np.random.default_rng(seed)
    return [plant(folder / f"clean-{number}", "clean", None, clean, random) for number in range(count)]
