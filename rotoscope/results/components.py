"""Where the differences between scores come from: the head, the task, the prompt.

The score of head h on prompt p of task t is taken for a sum of independent random parts,

    score = mean + head_h + task_t + (head x task)_ht + prompt_p(t) + rest_htp,

prompts belonging to their task and seen by every head. Each part has a variance; the mean squares of the balanced table
give an unbiased estimate of it (the estimates of an analysis of variance, which may come out below zero where there is
nothing).
"""

from __future__ import annotations

import numpy as np

from rotoscope.shapes import Float

COMPONENTS = ("head", "task", "head x task", "prompt", "rest")


def variance_components(scores: Float[np.ndarray, "heads tasks prompts"]) -> dict[str, float]:
    """The variance of each part, from at least two heads, tasks and prompts."""
    heads, tasks, prompts = scores.shape
    if min(scores.shape) < 2:
        raise ValueError(f"components need two heads, tasks and prompts at least, found {scores.shape}")
    mean = scores.mean()
    of_head, of_task = scores.mean((1, 2)), scores.mean((0, 2))
    of_both, of_prompt = scores.mean(2), scores.mean(0)
    both = of_both - of_head[:, None] - of_task[None, :] + mean
    rest = scores - of_both[:, :, None] - of_prompt[None] + of_task[None, :, None]
    head_ms = tasks * prompts * np.square(of_head - mean).sum() / (heads - 1)
    task_ms = heads * prompts * np.square(of_task - mean).sum() / (tasks - 1)
    both_ms = prompts * np.square(both).sum() / ((heads - 1) * (tasks - 1))
    prompt_ms = heads * np.square(of_prompt - of_task[:, None]).sum() / (tasks * (prompts - 1))
    rest_ms = np.square(rest).sum() / (tasks * (heads - 1) * (prompts - 1))
    return {
        "head": float(head_ms - both_ms) / (tasks * prompts),
        "task": float(task_ms - prompt_ms - both_ms + rest_ms) / (heads * prompts),
        "head x task": float(both_ms - rest_ms) / prompts,
        "prompt": float(prompt_ms - rest_ms) / heads,
        "rest": float(rest_ms),
    }
