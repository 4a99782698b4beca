"""The process of an actor. Nothing here imports torch before the actor's players have been launched."""

from __future__ import annotations

from trajtrainer.core.version import __version__
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import begin_child
from trajtrainer.run.actors.actor import Host
from trajtrainer.run.actors.messages import REPORT, ActorTask, Hello


def run_actor(task: ActorTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Run an actor in its own process."""
    pipe = messages.LockedPipe(connection)
    host = Host(task)
    begin_child(pipe, lifeline, task.log_level, host.kill)
    pipe.post(REPORT, Hello(__version__))  # From now on, the learner notices if this process hangs.
    host.launch()
    import torch  # imported late: see above

    from trajtrainer.run.actors.transports.pipe_channel import PipeChannel
    from trajtrainer.run.actors.transports.remote import run_host

    torch.set_num_threads(1)
    run_host(host, PipeChannel(pipe), pipe.post)
