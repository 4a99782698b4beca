"""The half of ``offline.py`` that needs ``d3rlpy`` and nothing of this project: prints gradient steps per CPU second.

``offline_d3rlpy.py STEPS.npz BATCH HIDDEN``: its IQL through two layers of HIDDEN units.
"""

from __future__ import annotations

import sys
import time

import d3rlpy
import numpy as np
import torch

_WARM_UP, _STEPS = 50, 400


def main(data: str, batch: int, hidden: int) -> None:
    torch.set_num_threads(1)
    loaded = np.load(data, allow_pickle=False)
    dataset = d3rlpy.dataset.MDPDataset(
        observations=loaded["obs"], actions=loaded["actions"], rewards=loaded["rewards"], terminals=loaded["ends"]
    )
    encoder = d3rlpy.models.VectorEncoderFactory([hidden, hidden])
    config = d3rlpy.algos.IQLConfig(
        batch_size=batch, actor_encoder_factory=encoder, critic_encoder_factory=encoder, value_encoder_factory=encoder
    )
    iql = config.create(device="cpu:0")
    iql.build_with_dataset(dataset)
    begin = 0.0
    for step in range(_WARM_UP + _STEPS):
        if step == _WARM_UP:
            begin = time.process_time()
        iql.update(dataset.sample_transition_batch(batch))
    print(_STEPS / (time.process_time() - begin))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
