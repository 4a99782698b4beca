"""Evaluates the behaviors of a run while they train (docs/measure/evaluation.md#while-training).

Between two iterations of the loop, the main thread submits models and collects results. Evaluations run in a separate
process. If that is not possible, they run in this process and the run waits for them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial

from attrs import evolve

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.metrics import of_summary
from trajtrainer.core.seeds import environment_seed
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsSummary
from trajtrainer.core.steps import Aggregation
from trajtrainer.envs.protocol import Environment, LogFolder
from trajtrainer.envs.select import make_environment as environment_of_settings
from trajtrainer.envs.workers.supervisor import RestartQuota
from trajtrainer.learning.nn.actor import copy_of
from trajtrainer.policies.play.result import EvaluationResult, actions_in_words
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.evaluator import Evaluator, EvaluatorProcess, InlineEvaluator, Request, generators_untouched
from trajtrainer.run.hooks import Evaluation
from trajtrainer.run.logs import fields
from trajtrainer.run.placement import EnvironmentFactory
from trajtrainer.run.run import Run
from trajtrainer.run.selection import Candidate
from trajtrainer.run.user_calls import OneCall
from trajtrainer.run.writers import EVALUATION_REWARD
from trajtrainer.settings.environment import LARGEST_PORT, UNSEEDED, Sampler
from trajtrainer.settings.evaluation import EvaluationSettings
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

# Timeout of a single wait for a result. Stop requests are handled between two waits.
_WAIT_S = 0.25
# If an evaluation takes longer than this, log that training is waiting for it.
_PATIENCE_S = 10.0


class EvaluationController:
    """Submits models to the evaluator, and handles the results.

    Args:
        run: the run whose behaviors are evaluated.
        behaviors: the behaviors that train, by name.
        make: creates an evaluator; called again if its process has died.
    """

    def __init__(
        self, run: Run, behaviors: Mapping[str, Behavior], make: Callable[[], InlineEvaluator | EvaluatorProcess]
    ) -> None:
        self._run = run
        self._behaviors = behaviors
        self._make = make
        self._settings = run.settings.evaluation or EvaluationSettings()
        self._evaluator = make()
        self._pending: tuple[Behavior, Candidate, float] | None = None  # behavior, model, start time
        self._quota = RestartQuota(run.settings.env_settings)
        self._has_failed = self._was_reported = self._is_done = False

    def step(self) -> None:
        """Handle a result if one has arrived, and start the evaluations that are due.

        Raises:
            SettingsError, UnsupportedError: evaluations are not possible with these settings.
        """
        if self._pending is not None or not self._evaluator.is_ready:
            self._poll(0.0)
        for behavior in list(self._behaviors.values()):
            candidate = None if behavior.selector is None else behavior.selector.pop_candidate()
            # Wait for the previous evaluation, so that its duration does not affect which steps are evaluated.
            if candidate is not None and self._wait() and self._can_begin():
                self._begin(behavior, candidate)

    def finish(self) -> None:
        """Run all remaining evaluations and wait for them, unless a stop was requested.

        Raises:
            SettingsError, UnsupportedError: as for ``step``.
        """
        if self._wait():
            self.step()
            self._is_done = self._wait()

    def close(self) -> None:
        """Close the evaluator. It is stopped immediately unless ``finish`` has completed all evaluations."""
        self._evaluator.close(wait=self._is_done)

    def kill(self) -> None:
        """Kill the evaluator without waiting. Safe in a signal handler: it is quick and takes no lock."""
        self._evaluator.kill()

    def _can_begin(self) -> bool:
        """Return whether the evaluator works. After a failure, it is restarted if the quota permits."""
        if self._has_failed:
            now_s = time.monotonic()
            if self._quota.refusal(now_s) is not None:
                return False
            self._quota.grant(now_s, 0.0)
            self._has_failed = False
            if not self._evaluator.is_alive:
                self._evaluator = self._make()
        return True

    def _begin(self, behavior: Behavior, candidate: Candidate) -> None:
        selector, own = behavior.selector, self._settings
        assert selector is not None
        assert selector.evaluations is not None
        wanted = selector.evaluations
        others = [other for other in self._behaviors.values() if other is not behavior]
        # If there are only data sets, nothing acts, so the acting policies are never updated: use the trainers'
        # networks.
        acting = {o.name: o.trainer.actor if self._run.is_offline else o.learner.policy.actor for o in others}
        request = Request(
            behavior=behavior.name,
            step=candidate.model.steps,
            episodes=wanted.episodes,
            deterministic=wanted.deterministic,
            max_decisions=own.max_decisions,
            timeout_s=own.timeout,
            actors={name: copy_of(actor) for name, actor in acting.items()} | {behavior.name: candidate.actor},
        )
        self._pending = behavior, candidate, time.monotonic()
        with self._run.timers("evaluation"):
            self._evaluator.begin(request)
        if selector.waits_for_evaluations:
            self._wait()

    def _wait(self) -> bool:
        """Wait for the pending evaluation. Returns False if a stop was requested, which cancels evaluations."""
        report_s = time.monotonic() + _PATIENCE_S
        with self._run.timers("evaluation"):
            while not self._run.stop.requested:
                if self._pending is None:
                    return True
                self._poll(_WAIT_S)
                if self._pending is not None and time.monotonic() > report_s:
                    logger.info("Waiting for the evaluation of the model at step %d.", self._pending[1].model.steps)
                    report_s = math.inf
        return False

    def _poll(self, timeout_s: float) -> None:
        outcome = self._evaluator.poll(timeout_s)
        if outcome is None and self._pending is not None:
            _, candidate, begin_s = self._pending
            if time.monotonic() < begin_s + self._settings.timeout:
                return
            self._evaluator.close(wait=False)
            outcome = EnvironmentFaultError(
                f"The evaluation of the model at step {candidate.model.steps} took longer than "
                f"{self._settings.timeout:g} s (evaluation.timeout). Evaluate fewer episodes, limit their length with "
                "evaluation.max_decisions, or raise the timeout."
            )
        if outcome is None:
            return
        pending, self._pending = self._pending, None
        if not isinstance(outcome, Exception):
            if pending is not None:
                self._add_result(pending[0], pending[1], outcome)
            return
        if isinstance(outcome, SettingsError | UnsupportedError) or not isinstance(outcome, TrajtrainerError):
            raise outcome
        self._has_failed = True
        if not self._run.stop.requested:  # No warning if a signal to the process group has ended the evaluator, too.
            log = logger.debug if self._was_reported else logger.warning
            self._was_reported = True
            log("An evaluation failed: %s Training continues, and the next evaluation will try again.", outcome)

    def _add_result(self, behavior: Behavior, candidate: Candidate, result: EvaluationResult) -> None:
        selector, step = behavior.selector, candidate.model.steps
        assert selector is not None
        assert selector.evaluations is not None
        deterministic = selector.evaluations.deterministic
        behavior.evaluation = Evaluation(behavior.name, step, result)
        is_best = selector.add_evaluation(candidate, result.returns.mean)
        summary = tags(result)
        logger.info(
            "%s. Evaluation at step %d: reward %.3f (standard deviation %.3f, %d episodes of %.1f decisions%s, %s).%s",
            behavior.name,
            step,
            result.returns.mean,
            result.returns.std,
            len(result.returns),
            result.lengths.mean,
            f", {result.num_truncated} of them truncated" if result.num_truncated else "",
            actions_in_words(deterministic=deterministic),
            " This is the best so far." if is_best else "",
            extra=fields(
                "evaluation",
                behavior=behavior.name,
                step=step,
                episodes=len(result.returns),
                is_best=is_best,
                **of_summary(summary, step),
            ),
        )
        for writer in self._run.writers:
            writer.write_stats(behavior.name, summary, step)
        entry = {"steps": step, **result.to_json(), "deterministic": deterministic}
        self._run.status.set_evaluation(behavior.name, entry)
        self._run.status.save()
        selector.best_models.write()
        self._run.hooks.add(behavior.evaluation)
        behavior.note_best()  # immediately, because there may be another result in this iteration
        selector.end_if_enough()


def tags(result: EvaluationResult) -> dict[str, StatsSummary]:
    """Return the statistics of an evaluation by TensorBoard tag."""
    found = {
        EVALUATION_REWARD: StatsSummary(result.returns.values, Aggregation.HISTOGRAM),
        f"{EVALUATION_REWARD} Std": StatsSummary([result.returns.std]),
        f"{EVALUATION_REWARD} Min": StatsSummary([result.returns.min]),
        f"{EVALUATION_REWARD} Max": StatsSummary([result.returns.max]),
        "Evaluation/Episode Length": StatsSummary(result.lengths.values),
    }
    if result.groups:
        found["Evaluation/Group Cumulative Reward"] = StatsSummary(result.group_returns.values)
    if len(result.teams) > 1:
        for team, own in result.teams.items():
            found[f"Evaluation/Team {team} Cumulative Reward"] = StatsSummary(own.returns.values)
    return found


def make_evaluations(
    run: Run,
    behaviors: Mapping[str, Behavior],
    make_environment: EnvironmentFactory,
    shared: tuple[Environment, Mapping[str, BehaviorSpec]] | None,
    reset_training: Callable[[], object],
) -> EvaluationController:
    """Create the controller that evaluates the behaviors of a run.

    Args:
        run: the run. Its settings must include evaluations.
        behaviors: the behaviors that train, by name.
        make_environment: the factory that made the training environment.
        shared: the training environment and its behavior specs, to use if a second environment is not possible; None if
            the training environment is in another process.
        reset_training: resets the training environment, so that training starts new episodes.
    """
    settings = settings_of_evaluation(run.settings)
    seed = settings.env_settings.seed
    parameters = parameters_of_evaluation(run.settings, seed)
    controller = partial(EvaluationController, run, behaviors)

    if settings.env_settings.is_editor:
        if run.is_offline:
            raise SettingsError(
                "The configuration has an evaluation, but there is no environment to evaluate in: all behaviors learn "
                "from data sets. Specify one with --env, or remove the evaluation."
            )
        if shared is None:
            raise SettingsError(
                "The configuration has an evaluation, but the only environment is the Unity Editor, which cannot be "
                "started twice and is used by an actor. Specify a build with --env, remove the evaluation, or use "
                "actors.backend inline."
            )
        logger.warning(
            "The Unity Editor cannot be started twice, so evaluations use the training scene: it is reset before and "
            "after each evaluation, which cuts unfinished episodes short. With a build (--env), evaluations do not "
            "disturb the training."
        )
        environment, specs = shared
        evaluator = Evaluator(lambda: environment, parameters, seed, lent=specs)
        return controller(lambda: InlineEvaluator(evaluator, run.stop, run.calls, reset_training))
    if make_environment is not environment_of_settings:
        evaluator = Evaluator(partial(make_environment, settings, run.folder), parameters, seed)
        with generators_untouched(), run.calls.outside(OneCall("The code that makes the evaluation's environment")):
            evaluator.start()  # start now, to detect factories that return the same environment twice
        return controller(lambda: InlineEvaluator(evaluator, run.stop, run.calls))
    logs = LogFolder(None)
    if run.folder.writes:
        folder = run.folder.logs / "evaluation"
        folder.mkdir(parents=True, exist_ok=True)
        logs = LogFolder(folder)
    start = partial(environment_of_settings, logs=logs, ports_of_run=run.settings.num_ports, here=True)

    def as_trained() -> RunSettings:
        """Return the settings with the raw image order that training has detected, if any."""
        env = settings.env_settings
        is_open = env.raw_image_order is RawImageOrder.AUTO
        order = run.status.raw_image_order() if is_open else env.raw_image_order
        return evolve(settings, env_settings=evolve(env, raw_image_order=order))

    if usable_cores() > 1:
        return controller(lambda: EvaluatorProcess(Evaluator(partial(start, as_trained()), parameters, seed)))
    evaluator = Evaluator(lambda: start(as_trained()), parameters, seed)
    return controller(lambda: InlineEvaluator(evaluator, run.stop, run.calls))


def settings_of_evaluation(settings: RunSettings) -> RunSettings:
    """Return the settings of the evaluation environment: the training settings, overridden by ``evaluation``."""
    own, env = settings.evaluation or EvaluationSettings(), settings.env_settings
    seed = environment_seed(env.seed, "evaluation") if own.seed == UNSEEDED else own.seed
    port = env.base_port + settings.num_players
    if port + own.num_envs > LARGEST_PORT:
        port = max(1, env.base_port - own.num_envs)
    arguments = env.env_args if own.env_args is None else own.env_args
    wrappers = env.wrappers if own.wrappers is None else own.wrappers
    return evolve(
        settings,
        env_settings=evolve(
            env, env_args=arguments, wrappers=wrappers, num_envs=own.num_envs, seed=seed, base_port=port
        ),
    )


def parameters_of_evaluation(settings: RunSettings, seed: int) -> dict[str, Sampler]:
    """Return the environment parameters for evaluations.

    Parameters with lessons are set to the last lesson, so that all evaluations of a run measure the same task.

    Args:
        settings: settings of the run.
        seed: seed of the evaluations. Samplers that have no seed get consecutive seeds, starting from this one.
    """
    own = (settings.evaluation or EvaluationSettings()).environment_parameters or {}
    training = settings.environment_parameters or {}
    unseeded = {name: evolve(each.curriculum[-1].value, seed=UNSEEDED) for name, each in training.items()} | own
    return {
        name: evolve(sampler, seed=seed + number) if sampler.seed == UNSEEDED else sampler
        for number, (name, sampler) in enumerate(unseeded.items())
    }
