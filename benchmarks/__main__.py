"""Run every benchmark; those of a GPU where there is one."""

import torch

from benchmarks import (
    canonical,
    command_line,
    depths,
    gpu,
    identity,
    long_prompts,
    monitor,
    multihop,
    page,
    plans,
    swaps,
    sweep,
    user_waits,
)

if __name__ == "__main__":
    if torch.cuda.is_available():
        user_waits.main(["--device", "cuda"])
        gpu.main([])
        long_prompts.main([])
    user_waits.main([])
    identity.main()
    swaps.main()
    depths.main()
    canonical.main()
    multihop.main()
    monitor.main()
    plans.bars()
    sweep.main()
    page.main()
    command_line.main()
