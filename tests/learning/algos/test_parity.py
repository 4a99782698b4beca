"""Every twin of the trainer against its reference: what both compute, losses, gradients and optimizer states."""

from __future__ import annotations

import copy
import inspect
import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from attrs import asdict
from torch import Tensor, nn

from tests.learning.algos import sac_mlagents
from tests.learning.algos.minibatches import minibatch_of
from tests.learning.algos.samples import ROWS, SPECS, decided, inputs, make, make_actor, minibatch, without_closed_form
from tests.learning.algos.twins import Numbers, Suite, Tolerance, all_twins, check, numbers, randn
from tests.learning.nn.specs import behavior, camera, network, vector
from trajtrainer.learning.algos.ppo import closed_form, losses
from trajtrainer.learning.algos.ppo.closed_form import PPOClosedForm
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.networks import BatchedCritics, CriticOutputs, Decision
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.algos.schedules import Schedule
from trajtrainer.learning.nn import distribution as reference
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.conditioning import affine
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.fast import batched_networks, lstm
from trajtrainer.learning.nn.fast.acting import InferenceActor, InferenceHead
from trajtrainer.learning.nn.fast.adam import Adam, part_of
from trajtrainer.learning.nn.fast.batched_networks import BatchedNetworks, Linear
from trajtrainer.learning.nn.fast.distribution import Decisions, GaussianScale, softmax
from trajtrainer.learning.nn.fast.two_cores import HalvedGroups, HalvedPictures, TwoThreads
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.multi_agent import GroupCritic, GroupRows
from trajtrainer.learning.rewards.gail import Discriminator, Inputs, differentiate, discriminate, gradient_penalty
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.network import Activation, Initialization
from trajtrainer.settings.trainer import TrainerSettings

SUITE = Suite()
twin = SUITE.twin


# Adam


@twin(Adam, [1e-8, 1e-5], rtol=0, atol=0)
def steps(eps: float) -> tuple[Numbers, Numbers]:
    """The weights and the state after steps at falling rates; the third parameter has no gradient."""
    ours = [randn(3, 2).requires_grad_(), randn(4).requires_grad_(), torch.zeros(1, requires_grad=True)]
    theirs = [parameter.detach().clone().requires_grad_() for parameter in ours]
    adam, torchs = Adam(ours, 0.1, eps=eps), torch.optim.Adam(theirs, lr=0.1, eps=eps, fused=True)
    for step in range(4):
        for own, other in zip(ours[:2], theirs[:2], strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        adam.param_groups[0]["lr"] = torchs.param_groups[0]["lr"] = 0.1 / (step + 1)
        adam.step()
        torchs.step()
    state = adam.state_dict()
    return numbers(ours, state), numbers(theirs, torchs.state_dict())


@twin(Adam, rtol=0, atol=0)
def loaded_state(_: None) -> tuple[Numbers, Numbers]:
    first = torch.zeros(5, requires_grad=True)
    adam = Adam([first], 0.1)
    first.grad = torch.arange(5.0)
    adam.step()
    second = first.detach().clone().requires_grad_()
    other = Adam([second], 0.1)
    other.load_state_dict(adam.state_dict())
    for optimizer, parameter in ((adam, first), (other, second)):
        parameter.grad = torch.ones(5)
        optimizer.step()
    return {"weights": second}, {"weights": first}


# Formulas


@twin(GaussianScale, [(1, 2), (5, 3)])
def gaussian(shape: tuple[int, int]) -> tuple[Numbers, Numbers]:
    log_sigma, deviation = randn(*shape), randn(5, shape[1], seed=1)
    ours, theirs = GaussianScale.of(log_sigma.numpy()), reference.GaussianScale(log_sigma)
    found = {"entropy": ours.entropy(), "log_prob": ours.log_prob(deviation.numpy())}
    expected = {"entropy": theirs.entropy, "log_prob": theirs.log_prob(deviation)}
    for name in ("sigma", "log_normalizer", "double_variance"):
        found[name], expected[name] = getattr(ours, name), getattr(theirs, name)
    return found, expected


@twin(softmax, [(6, 1), (6, 5), (2, 3, 4)])
def probabilities(shape: tuple[int, ...]) -> tuple[Numbers, Numbers]:
    logits = 30.0 * randn(*shape)
    found = softmax(logits.numpy().copy(), lambda reduction, values: reduction.reduce(values, -1, keepdims=True))
    return {"probabilities": found}, {"probabilities": logits.softmax(-1)}


# Memories and bodies

NETWORKS, SEQUENCES, STEPS, SIZE, UNITS = 2, 3, 5, 4, 6


@twin(lstm.run, rtol=1e-4)
def recurrence(_: None) -> tuple[Numbers, Numbers]:
    """The outputs, and the gradients by the biases and the inputs."""
    with seeded(0):
        modules = [nn.LSTM(SIZE, UNITS) for _ in range(NETWORKS)]
    x = randn(NETWORKS, STEPS, SEQUENCES, SIZE).requires_grad_()
    memory, grad = randn(NETWORKS, SEQUENCES, 2 * UNITS, seed=1), randn(NETWORKS, STEPS, SEQUENCES, UNITS, seed=2)
    weights = [[parameter.detach() for parameter in module.parameters()] for module in modules]
    hidden_weight = torch.stack([of[1] for of in weights])
    sums = [nn.functional.linear(x[n], of[0], of[2] + of[3]) for n, of in enumerate(weights)]
    made = lstm.run(torch.stack(sums, 1).detach().numpy(), hidden_weight, memory.numpy())
    found: Numbers = {"hidden": np.stack([step.hidden for step in made], 1)}
    grad_sums = lstm.backward(made, hidden_weight, memory.numpy(), grad.transpose(0, 1).numpy())
    states = [[part.contiguous() for part in memory[n][None].chunk(2, 2)] for n in range(NETWORKS)]
    expected: Numbers = {"hidden": torch.stack([module(x[n], tuple(states[n]))[0] for n, module in enumerate(modules)])}
    expected["hidden"].backward(grad)
    assert x.grad is not None
    for n, module in enumerate(modules):
        by_sums = torch.from_numpy(grad_sums[:, n])
        found |= {f"by bias {n}": by_sums.sum((0, 1)), f"by x {n}": by_sums @ weights[n][0]}
        expected |= {f"by bias {n}": list(module.parameters())[-1].grad, f"by x {n}": x.grad[n]}
    return found, expected


@twin(batched_networks.affine_gradient, [(), (3,)])
def linear(networks: tuple[int, ...]) -> tuple[Numbers, Numbers]:
    """Of one network and of several."""
    rank = (1,) if networks else ()
    weight, bias = randn(*networks, 4, 3).requires_grad_(), randn(*networks, *rank, 4, seed=1).requires_grad_()
    x, grad = randn(*networks, 5, 3, seed=2), randn(*networks, 5, 4, seed=3)
    affine(x, Linear.of(weight, bias).layer).backward(grad)  # type: ignore[no-untyped-call]
    out = Linear.of(torch.empty_like(weight), torch.empty_like(bias))
    with torch.no_grad():
        batched_networks.affine_gradient(grad, x, out)
    return {"weight": out.weight, "bias": out.bias}, {"weight": weight.grad, "bias": bias.grad}


@twin(batched_networks.forward, [(1, None), (3, None), (2, 6)])
@twin(BatchedNetworks, [(1, None), (3, None), (2, 6)])
def networks_together(shape: tuple[int, int | None]) -> tuple[Numbers, Numbers]:
    layers, memory = shape
    spec = SPECS["hybrid"]
    actor, critic, _ = make(spec, network(layers=layers, memory=memory, normalize=True), batch_size=10**6)
    batch = minibatch(spec, memory_size=memory or 0)
    with torch.no_grad():
        distribution, _ = actor.distribution(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        values, _ = critic(batch.obs, batch.critic_memory, batch.sequence_length)
        stack = BatchedNetworks(actor, critic)
        outputs = stack(stack.encoded(batch.obs), (batch.memory, batch.critic_memory), batch.sequence_length)
    logits = torch.from_numpy(outputs.policy[:, 3:])
    return (
        {"mu": outputs.policy[:, :3], "logits": logits[~batch["mask"]], "values": outputs.values.T},
        {"mu": distribution.mu, "logits": distribution.masked_logits[~batch["mask"]], "values": values},
    )


# PPO


@twin(closed_form.clipped_policy_loss_and_gradient, [(2, False), (1, True)])
def surrogate(shape: tuple[int, bool]) -> tuple[Numbers, Numbers]:
    columns, padded = shape
    ratio, advantage = randn(ROWS, columns).exp().requires_grad_(), randn(ROWS, seed=1)
    mask = (torch.arange(ROWS) % 3 > 0).float() if padded else None
    log_prob = ratio.detach().log().requires_grad_()
    loss = losses.clipped_policy_loss(log_prob.exp(), advantage, 0.2, mask)
    loss.backward()  # type: ignore[no-untyped-call]
    weight = closed_form.row_weight(ROWS, mask)
    found, gradient = closed_form.clipped_policy_loss_and_gradient(
        log_prob.detach().exp().numpy(), advantage.numpy(), 0.2, weight
    )
    return {"loss": float(found), "gradient": gradient}, {"loss": loss.item(), "gradient": log_prob.grad}


@twin(closed_form.value_loss_and_gradient, itertools.product([1, 2], [False, True], [False, True]))
def squared_error(shape: tuple[int, bool, bool]) -> tuple[Numbers, Numbers]:
    signals, padded, clipped = shape
    values, returns, old = (randn(signals, ROWS, seed=seed) for seed in range(3))
    mask = (torch.arange(ROWS) % 3 > 0).float() if padded else None
    values.requires_grad_()
    loss = losses.value_loss(values, returns, mask, old_values=old if clipped else None, epsilon=0.3)
    loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    found, gradient = closed_form.value_loss_and_gradient(
        values.detach().numpy().T,
        returns.numpy().T,
        old.numpy().T if clipped else None,
        0.3,
        closed_form.row_weight(ROWS, mask),
    )
    return {"loss": float(found), "gradient": gradient}, {"loss": loss.item(), "gradient": values.grad.T}


@twin(Decisions, SPECS, rtol=1e-4)
def log_probabilities(name: str) -> tuple[Numbers, Numbers]:
    """Of what was done, and the gradient of a sum of them and of the entropy."""
    spec = SPECS[name]
    size, branches = spec.action_spec.continuous_size, tuple(spec.action_spec.discrete_branches)
    batch = minibatch(spec)
    outputs, log_sigma = randn(ROWS, size + sum(branches)).requires_grad_(), randn(1, size).requires_grad_()
    grad = randn(ROWS, size + len(branches), seed=1)
    masked = outputs[:, size:].masked_fill(batch["mask"], -1e8)
    starts = torch.tensor([sum(branches[:k]) for k in range(len(branches))], dtype=torch.int64)
    policy = ActionDistribution(outputs[:, :size], reference.GaussianScale(log_sigma), masked, branches, starts)
    log_prob = policy.log_prob(batch["continuous"], batch["discrete"])
    ((log_prob * grad).sum() - 0.3 * policy.entropy().mean()).backward()  # type: ignore[no-untyped-call]
    ours = Decisions(outputs.detach().numpy(), log_sigma.detach().numpy(), batch, branches)
    by_outputs, by_log_sigma = ours.gradient(grad.numpy(), 0.3, closed_form.row_weight(ROWS, None))
    found: Numbers = {"log_prob": ours.log_prob, "by outputs": by_outputs}
    expected: Numbers = {"log_prob": log_prob, "by outputs": outputs.grad}
    if size:
        found["by log_sigma"], expected["by log_sigma"] = by_log_sigma, log_sigma.grad
    return found, expected


@twin(PPOClosedForm, itertools.product(SPECS, [1, 3], [False, True], [None, 6]), atol=1e-7, by_largest=True)
def gradient(shape: tuple[str, int, bool, int | None]) -> tuple[Numbers, Numbers]:
    """The gradient of every parameter."""
    ours, theirs = _update(*shape)
    return (
        {f"parameter {number}": one for number, one in enumerate(ours[0])},
        {f"parameter {number}": one for number, one in enumerate(theirs[0])},
    )


@twin(PPOClosedForm, itertools.product(SPECS, [1, 3], [False, True], [None, 6]))
def statistics(shape: tuple[str, int, bool, int | None]) -> tuple[Numbers, Numbers]:
    ours, theirs = _update(*shape)
    assert ours[1].keys() >= {"Policy/Approximate KL", "Policy/Clip Fraction", "Losses/Value Loss"}
    return {tag: ours[1][tag] for tag in theirs[1]}, theirs[1]


def _update(name: str, layers: int, clipping: bool, memory: int | None) -> tuple[Any, Any]:
    """Gradients and statistics of one minibatch by the closed form and by autograd."""
    spec = SPECS[name]
    actor, critic, ppo = make(
        spec, network(layers=layers, normalize=True, memory=memory), value_clipping=clipping, learning_rate=0.0
    )
    if actor.head.log_sigma is not None:
        with torch.no_grad():
            # So small a sigma that the constant which keeps divisions finite counts. It magnifies the rounding of the
            # mean, of which a memory makes more.
            smallest = -6.0 if memory is None else -2.0
            actor.head.log_sigma.copy_(torch.tensor([[smallest, 0.5, 0.0]])[:, : actor.head.continuous_size])
    batch = minibatch(spec, memory_size=memory or 0)
    if actor.head.continuous_size:
        with torch.no_grad():
            distribution, _ = actor.distribution(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
            batch["continuous"].copy_(distribution.sample(torch.Generator().manual_seed(4)).continuous)
            batch["log_prob"].add_(distribution.log_prob(batch["continuous"], batch["discrete"]) + 1.2)
    schedule = Schedule(learning_rate=0.0, epsilon=0.2, beta=0.3)
    loss, expected = ppo.loss(batch, schedule, diagnostics=True)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in (*actor.parameters(), *critic.parameters())]
    assert ppo.closed_form is not None
    found = ppo.closed_form.differentiate(batch, schedule, True)
    (flat,) = ppo.leaves
    assert flat.grad is not None
    return ([part_of(flat.grad, flat, parameter) for parameter in ppo._parameters], found), (gradients, expected)


@twin(PPOClosedForm, [None, 6], atol=2e-5)
def state(memory: int | None) -> tuple[Numbers, Numbers]:
    """Weights and moments after updates of which the closed form made the first and autograd the second, or each all
    of them."""
    spec = SPECS["hybrid"]
    batch, settings = minibatch(spec, memory_size=memory or 0), network(memory=memory)

    def trained(sizes: tuple[int, ...]) -> Numbers:
        moments, weights = None, None
        for size in sizes:  # which chooses the way
            actor, critic, ppo = make(spec, settings, batch_size=size)
            assert (ppo.closed_form is not None) == (size == _SMALL)
            modules = nn.ModuleList([actor, critic])
            if moments is not None and weights is not None:
                modules.load_state_dict(weights)
                ppo.load_optimizer_states(moments)
            ppo.gradient_step(batch, Schedule(1e-3, 0.2, 0.01))
            moments, weights = copy.deepcopy(ppo.optimizer_states()), copy.deepcopy(modules.state_dict())
        return numbers(modules.parameters(), ppo.optimizer_states()["adam"])

    return trained((_SMALL, _LARGE, _SMALL)), trained((_LARGE, _LARGE, _LARGE))


_SMALL, _LARGE = 64, 10**7


# Two threads


PUBLISHED = PPOHyperparameters(
    joint_ratio=True, joint_entropy=True, max_grad_norm=0.05, vf_coef=0.7, adam_eps=1e-5, learning_rate=1e-3
)


@twin(PPOClosedForm, itertools.product(SPECS, Activation, [None, 6]), atol=2e-5)
def as_published(shape: tuple[str, Activation, int | None]) -> tuple[Numbers, Numbers]:
    """Weights, moments and statistics after updates with the options that ML-Agents does not have."""
    name, activation, memory = shape
    spec, found = SPECS[name], []
    batch = minibatch(spec, memory_size=memory or 0)
    for by_hand in (True, False):
        settings = network(
            memory=memory, normalize=True, activation=activation, initialization=Initialization.ORTHOGONAL, clip_obs=2.0
        )
        published = asdict(PUBLISHED, filter=lambda one, _: one.init)
        given = partial(make, spec, settings, **published)
        actor, critic, ppo = given() if by_hand else without_closed_form(given)
        assert (ppo.closed_form is not None) == by_hand
        for _ in range(3):
            tags = ppo.gradient_step(batch, Schedule(1e-3, 0.2, 0.3))
        found.append(numbers((*actor.parameters(), *critic.parameters()), ppo.optimizer_states()["adam"]) | tags)
    assert found[0]["Policy/Gradient Norm"] > 0.05
    return found[0], found[1]


@twin(TwoThreads, [1, 2, 3])
def calls(count: int) -> tuple[Numbers, Numbers]:
    arguments = [(number, 2) for number in range(count)]
    return {"results": TwoThreads().run(pow, arguments)}, {"results": list(itertools.starmap(pow, arguments))}


@twin(PPO.differentiate, rtol=0, atol=0)
def autograd_on_two_threads(_: None) -> tuple[Numbers, Numbers]:
    """Weights, moments and statistics after updates of networks with a camera."""
    spec = behavior([camera(3, 20, 20), vector(4)], 2, (3,))
    batch = minibatch(spec)
    found, together = [], TwoThreads()
    together._is_alone = False  # on any machine
    for threads in (together, None):
        actor, critic, ppo = make(spec, network())
        ppo._threads = threads
        for _number in range(8):
            tags = ppo.gradient_step(batch, ppo.schedule(0))
        found.append(numbers((*actor.parameters(), *critic.parameters()), ppo.optimizer_states()["adam"]) | tags)
    return found[0], found[1]


GROUPS = {
    "one": [[0, 1]],
    "of one size": [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
    "of any size": [[8, 9, -1], [5, -1, -1], [3, 4, 2], [1, 0, -1], [6, 7, 10]],
    "with one that is silent": [[0, 1, 2], [0, 3, -1], [0, 4, 5]],
}


@twin(HalvedGroups, itertools.product(GROUPS, [None, 8]), by_largest=True)
def encodings_of_groups(case: tuple[str, int | None]) -> tuple[Numbers, Numbers]:
    """What comes out, and what every weight's gradient of a loss of it is, on two threads."""
    members = torch.tensor(GROUPS[case[0]])
    number = int(members.max()) + 1
    rows = torch.zeros(0, dtype=torch.int64)
    spec = behavior([camera(3, 20, 20), vector(4)], 2, (3,))
    obs = [torch.randint(256, (number, 3, 20, 20), dtype=torch.uint8), randn(number, 4)]
    groups = GroupRows(obs, randn(number, 5, seed=1), members, rows, rows)
    with seeded(0):
        critic = GroupCritic(spec, network(memory=case[1]), ["extrinsic"])
    halved = HalvedGroups(critic)
    halved.threads._is_alone = False  # on any machine
    found = []
    for encode in (halved, critic.encode):
        critic.body.max_group_size.fill_(1)
        critic.zero_grad()
        made = encode(groups)
        made.cos().sum().backward()  # type: ignore[no-untyped-call]
        gradients = {name: one.grad for name, one in critic.named_parameters() if one.grad is not None}
        del gradients["body.attention.key.bias"]  # a softmax does not change by it
        found.append({"encodings": made, "largest": critic.body.max_group_size.clone(), **gradients})
    return found[0], found[1]


@twin(HalvedPictures, itertools.product(["simple", "nature_cnn", "resnet"], [1, 7]), by_largest=True)
def encodings_of_pictures(case: tuple[str, int]) -> tuple[Numbers, Numbers]:
    """The same of pictures beside a vector, on two threads, one row alone included."""
    encoder, rows = case
    spec = behavior([camera(3, 40, 36), vector(4), camera(1, 36, 36)], 2)
    pictures = [torch.randint(256, (rows, *shape), dtype=torch.uint8) for shape in ((3, 40, 36), (1, 36, 36))]
    obs = [pictures[0], randn(rows, 4), pictures[1]]
    with seeded(0):
        body = NetworkBody(spec.observation_specs, network(encoder=encoder))
    halved = HalvedPictures(body)
    halved.threads._is_alone = False  # on any machine
    found = []
    for encode in (halved, lambda seen: body(seen)[0]):
        body.zero_grad()
        made = encode(obs)
        made.cos().sum().backward()
        found.append({"encodings": made, **{name: one.grad for name, one in body.named_parameters()}})
    return found[0], found[1]


# Acting

# Continuous actions, branches.
KINDS: list[tuple[int, tuple[int, ...]]] = [(2, ()), (0, (3,)), (0, (2, 2)), (0, (2, 5, 3)), (2, (4,)), (3, (3, 1, 4))]
ACTORS: list[dict[str, Any]] = [
    *({"continuous": c, "branches": b, "memory": memory} for c, b in KINDS for memory in (None, 8)),
    *({"branches": (3, 2), "normalize": normalize, "layers": layers} for normalize in (0, 1) for layers in (1, 3)),
    *({"continuous": c, "branches": b, "sac": True, "memory": memory}
      for c, b in ((2, ()), (1, (3, 2)), (0, (4,))) for memory in (None, 8)),
    *({"branches": (3,), "normalize": 1, "activation": activation, "clip_obs": 0.5, "clip_actions": 0.7}
      for activation in Activation),
    *({"branches": b, "memory": 8, "agents": agents} for agents in (0, 1, 17) for b in ((), (3,), (3, 2))),
]  # fmt: skip


@twin(InferenceActor, itertools.product(ACTORS, [False, True]), atol=1e-5)
def acting(shape: tuple[dict[str, Any], bool]) -> tuple[Numbers, Numbers]:
    """Several steps, the memory handed on, sampled and deterministic."""
    settings, deterministic = dict(shape[0]), shape[1]
    agents = settings.pop("agents", 30)
    actor = make_actor(**settings)
    ours, generators = InferenceActor(actor), [torch.Generator().manual_seed(7) for _ in range(2)]
    memory = inputs(actor, agents=agents).memory
    found: Numbers = {}
    expected: Numbers = {}
    for step in range(3):
        given = inputs(actor, agents=agents, seed=step)
        given.memory = memory
        mine, theirs = (None, None) if deterministic else generators
        actions, memory = ours(given.obs, given.mask, given.memory, mine)
        found |= {f"{what} {step}": one for what, one in (actions._asdict() | {"memory": memory}).items()}
        expected |= {f"{what} {step}": one for what, one in decided(actor, given, theirs).items()}
    return found, expected


NORMALIZED: list[dict[str, Any]] = [
    {"continuous": c, "branches": b, "sac": True, "batch_norm": True, "memory": memory}
    for c, b in ((2, ()), (1, (3, 2)), (0, (4,)))
    for memory in (None, 8)
]


@twin(InferenceActor, itertools.product(NORMALIZED, [False, True]), atol=1e-4)
def acting_by_folded_layers(shape: tuple[dict[str, Any], bool]) -> tuple[Numbers, Numbers]:
    """Folding adds up in another order."""
    found: tuple[Numbers, Numbers] = acting(shape)
    return found


@twin(InferenceHead, itertools.product(KINDS, [False, True]), atol=1e-5)
def head(shape: tuple[tuple[int, tuple[int, ...]], bool]) -> tuple[Numbers, Numbers]:
    """Likeliest actions for encodings of any kind."""
    (continuous, branches), sac = shape
    actor = make_actor(continuous, branches, sac=sac)
    encoding, given = randn(30, actor.body.encoding_size), inputs(actor)
    with torch.no_grad():
        found = InferenceHead(actor.head)(encoding, given.mask, torch.Generator().manual_seed(7))
        policy = actor.head(encoding, torch.from_numpy(given.mask))
        actions = policy.sample(torch.Generator().manual_seed(7))
        expected = {
            "continuous": actions.continuous,
            "discrete": actions.discrete.to(torch.int32),
            "env_continuous": policy.to_env(actions.continuous),
            "log_prob": policy.log_prob(*actions),
            "entropy": policy.entropy(),
        }
    return found._asdict(), expected


# SAC's value networks


VALUES = list(itertools.product(SPECS, [1, 2]))  # specs, reward signals
ACTIVATED = [*VALUES, ("hybrid", 1, Activation.TANH), ("hybrid", 2, Activation.RELU)]


@twin(BatchedCritics, ACTIVATED, rtol=1.3e-6, atol=1e-5)
def estimates(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    return _evaluated(*shape, stacked=True)[0], _evaluated(*shape, stacked=False)[0]


@twin(BatchedCritics, ACTIVATED, by_largest=True)
def gradient_of_estimates(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    """By the action and by every parameter."""
    return _evaluated(*shape, stacked=True)[1], _evaluated(*shape, stacked=False)[1]


@twin(BatchedCritics, ACTIVATED, rtol=1e-4, atol=1e-5)
def updates(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates, of which the twin made the first and the last, or none."""
    return _after(shape, "srs"), _after(shape, "rrr")


@twin(BatchedCritics, VALUES, rtol=0, atol=0)
def handed_over(shape: tuple[str, int]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates by the twin, handed to the reference and back or not."""
    return _after(shape, "s-s-s"), _after(shape, "sss")


@twin(BatchedCritics, ACTIVATED, rtol=1.3e-6, atol=1e-5)
def estimates_of_twins(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    return _evaluated_twins(*shape, stacked=True)[0], _evaluated_twins(*shape, stacked=False)[0]


@twin(BatchedCritics, ACTIVATED, by_largest=True)
def gradient_of_twins(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    """By the action and by every parameter."""
    return _evaluated_twins(*shape, stacked=True)[1], _evaluated_twins(*shape, stacked=False)[1]


@twin(BatchedCritics, ACTIVATED, rtol=1e-4, atol=1e-5)
def updates_of_twins(shape: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates, of which the twin made the first and the last, or none."""
    return _after(shape, "srs", value_network=False), _after(shape, "rrr", value_network=False)


@twin(BatchedCritics, VALUES, rtol=0, atol=0)
def twins_handed_over(shape: tuple[str, int]) -> tuple[Numbers, Numbers]:
    """Weights and moments after three updates by the twin, handed to the reference and back or not."""
    return _after(shape, "s-s-s", value_network=False), _after(shape, "sss", value_network=False)


def _after(shape: tuple[Any, ...], ways: str, *, value_network: bool = True) -> Numbers:
    """Weights and moments after updates: s by stacked networks, r by the reference, which - only hands them on."""
    last: Any = None
    for way in ways:
        sac, batch = _sac(*shape, stacked=way == "s", value_network=value_network)
        if last is not None:
            for name, module in sac_mlagents.modules(sac).items():
                module.load_state_dict(sac_mlagents.modules(last)[name].state_dict())
            sac.load_optimizer_states(last.optimizer_states())
            sac_mlagents.load_log_alpha(sac, sac_mlagents.log_alpha(last))
        if way != "-":
            sac.gradient_step(batch, 1e-3)
        last = sac
    found: Numbers = {}
    for name, module in sac_mlagents.modules(last).items():
        found |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    for name, one in last.optimizer_states().items():
        found |= {f"{name} {key}": value for key, value in numbers((), one).items()}
    return found


def _sac(
    name: str, signals: int, activation: Activation = Activation.SWISH, *, stacked: bool, value_network: bool = True
) -> tuple[Any, Minibatch]:
    spec = SPECS[name]
    rewards = {"extrinsic": RewardSignalSettings(), "rnd": RndSettings()}
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(value_network=value_network),
        network_settings=network(normalize=True, activation=activation),
        reward_signals=dict(list(rewards.items())[:signals]),
    )
    with seeded(1):
        sac = sac_mlagents.make_sac(spec, settings, stacked=stacked)
    batch = minibatch(spec)
    rng = torch.Generator().manual_seed(5)
    return sac, minibatch_of(
        obs=batch.obs,
        next_obs=tuple(torch.randn(one.shape, generator=rng) for one in batch.obs),
        mask=batch["mask"],
        continuous=batch["continuous"].tanh(),
        discrete=batch["discrete"],
        rewards=torch.randn(signals, ROWS, generator=rng),
        discount=torch.full((signals, ROWS), 0.9),
        noise=torch.randn(batch["continuous"].shape, generator=rng),
        next_mask=torch.zeros_like(batch["mask"]),
        next_noise=torch.randn(batch["continuous"].shape, generator=rng),
    )


def _evaluated(
    name: str, signals: int, activation: Activation = Activation.SWISH, *, stacked: bool
) -> tuple[Numbers, Numbers]:
    """Estimates, and gradients of their squares."""
    sac, batch = _sac(name, signals, activation, stacked=stacked)
    assert isinstance(sac.critics, BatchedCritics) == stacked
    size = batch["continuous"].shape[1]
    sampled = (0.5 * batch["continuous"]).requires_grad_() if size else None
    made: CriticOutputs = sac.critics(batch, _decision(sac, batch.obs, sampled), None)
    assert not made.following.requires_grad
    assert made.value is not None
    assert made.sampled_q is not None
    total = made.value.square().sum() + made.q.square().sum()
    if sampled is not None:
        total = total + made.sampled_q.square().sum()
    return made._asdict(), _q_gradients(sac, total, sampled)


def _evaluated_twins(
    name: str, signals: int, activation: Activation = Activation.SWISH, *, stacked: bool
) -> tuple[Numbers, Numbers]:
    """Estimates, and gradients of their squares."""
    sac, batch = _sac(name, signals, activation, stacked=stacked, value_network=False)
    assert isinstance(sac.critics, BatchedCritics) == stacked
    size = batch["continuous"].shape[1]
    sampled = (0.5 * batch["continuous"]).requires_grad_() if size else None
    after = _decision(sac, batch.next_obs, 0.3 * batch["continuous"] if size else None)
    made: CriticOutputs = sac.critics(batch, _decision(sac, batch.obs, sampled), after)
    without: CriticOutputs = sac.critics(batch, None, after)
    assert not made.following.requires_grad
    assert made.value is None
    assert made.sampled_q is not None
    assert without.sampled_q is None
    total = made.q.square().sum() + (0.0 if sampled is None else made.sampled_q.square().sum())
    told = {**made._asdict(), "alone": without.q, "following alone": without.following}
    del told["value"]
    return told, _q_gradients(sac, total, sampled)


def _decision(sac: Any, obs: Any, action: Tensor | None) -> Decision:
    """A decision for this action, of which the value networks see no more."""
    policy, _ = sac.actor.distribution(obs, torch.zeros(len(obs[0]), sum(sac.actor.head.branches)).bool())
    return Decision(sac.actor.body.encoder(obs), policy, action, None, None)


def _q_gradients(sac: Any, total: Tensor, sampled: Tensor | None) -> Numbers:
    total.backward()  # type: ignore[no-untyped-call]
    found: Numbers = {} if sampled is None else {"by the action": sampled.grad}
    for number, parameter in enumerate(sac._optimized["value"]):
        leaf = sac._optimizer.leaf_of(parameter)
        assert leaf.grad is not None
        found[f"parameter {number}"] = part_of(leaf.grad, leaf, parameter)
    return found


# GAIL's discriminator


def _no_noise(like: Tensor) -> Tensor:
    raise AssertionError("there is no bottleneck")


@twin(differentiate, itertools.product((1, 2, 3), (False, True), (False, True)), rtol=1e-4, atol=1e-5)
def discriminated(shape: tuple[int, bool, bool]) -> tuple[Numbers, Numbers]:
    layers, use_actions, normalize = shape
    torch.manual_seed(layers)
    spec = behavior([vector(5), vector(3, "second")], 2, (3,))
    settings = network(hidden=12, layers=layers, normalize=normalize)
    discriminator = Discriminator(spec, settings, use_actions=use_actions, use_vail=False)
    assert discriminator.is_mlp
    with torch.no_grad():
        discriminator.estimator.weight *= 5  # a gradient whose norm is not far from 1
        discriminator.estimator.bias.add_(0.3)
    discriminator.encoder.update_normalization([torch.randn(30, 5) * 2 + 1, torch.randn(30, 3)])

    def sampled(scale: float) -> Inputs:
        # Some of it beyond the normalizer's limits.
        obs = [torch.randn(7, 5) * scale, torch.randn(7, 3)]
        return [*obs, torch.rand(7, 6)] if use_actions else obs

    policy, demonstrated, between = sampled(4.0), sampled(1.0), sampled(6.0)
    found, penalty = differentiate(discriminator, policy, demonstrated, between)
    ours = _gradients(discriminator) | {"loss": found[0], "policy": found[1], "expert": found[2], "penalty": penalty}
    discriminator.zero_grad(set_to_none=True)
    expected = discriminate(discriminator, policy, demonstrated, _no_noise)
    expected_penalty = gradient_penalty(discriminator, between, _no_noise)
    (expected.loss + expected_penalty).backward()  # type: ignore[no-untyped-call]
    theirs = {"loss": expected[0], "policy": expected[1], "expert": expected[2], "penalty": expected_penalty}
    return ours, _gradients(discriminator) | theirs


def _gradients(module: nn.Module) -> Numbers:
    return {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}


# The suite


@pytest.mark.parametrize(("compare", "shape", "tolerance"), SUITE.cases)
def test_a_twin_says_what_its_reference_says(compare: Any, shape: Any, tolerance: Tolerance) -> None:
    check(compare, shape, tolerance)


def test_every_twin_names_a_reference_and_is_in_the_suite() -> None:
    named = all_twins()
    assert named
    assert named | {PPO.differentiate} == SUITE.twins, "it is a reference, and on two threads its own twin"
    assert all(inspect.getdoc(one) for one in SUITE.twins)
