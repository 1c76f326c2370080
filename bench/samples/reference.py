"""Runs agentlightning 1.0.2's adapter on the batches that bench/samples wrote, and
prints its CPU seconds, rows, tokens and trained tokens. Reading is not counted."""

import contextlib
import glob
import os
import sys
import time

import numpy as np
import torch

from agentlightning.verl.agl_rollout_manager import CompletedRollout, Triplet
from agentlightning.verl.rollout_adapter import RolloutAdapter

torch.set_num_threads(1)
ids = list(range(160_000))  # one object an id: what it compares is mostly itself


def read(path):
    words = np.fromfile(path, dtype="<i4")
    rollouts, calls = int(words[0]), int(words[1])
    at = 2
    for r in range(rollouts):
        triplets = []
        for _ in range(calls):
            p, s = int(words[at]), int(words[at + 1])
            at += 2
            prompt = list(map(ids.__getitem__, words[at : at + p].tolist()))
            at += p
            response = list(map(ids.__getitem__, words[at : at + s].tolist()))
            at += s
            probs = words[at : at + s].view("<f4").astype(float).tolist()
            at += s
            triplets.append(Triplet(prompt={"token_ids": prompt}, response={"token_ids": response, "log_probs": probs}))
        yield CompletedRollout(rollout_id=str(r), data_id="d", step=1, sample_idx_in_step=r, enqueue_time=0.0, final_reward=1.0, triplets=triplets)


cpu, rows, tokens, trained = 0.0, 0, 0, 0
for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.bin"))):
    batch = list(read(path))
    longest = max(len(t.prompt["token_ids"]) + len(t.response["token_ids"]) for r in batch for t in r.triplets)
    adapter = RolloutAdapter(
        max_prompt_length=longest, max_response_length=longest, device=torch.device("cpu"), pad_token_id=0, trace_aggregator_level="trajectory"
    )
    with contextlib.redirect_stdout(sys.stderr):
        start = time.process_time()
        data, metrics = adapter.get_train_data_batch(batch)
        cpu += time.process_time() - start
    rows += metrics["training/n_sample"]
    tokens += int(data.batch["attention_mask"].sum())
    trained += int(data.batch["response_mask"].sum())
    del batch, data
print(cpu, rows, tokens, trained)
