"""Run every benchmark; those of a GPU where there is one."""

import torch

from benchmarks import canonical, command_line, depths, gpu, memory, monitor, multihop, page, swaps

if __name__ == "__main__":
    if torch.cuda.is_available():
        gpu.main([])
    swaps.main()
    depths.main()
    canonical.main()
    multihop.main()
    monitor.main()
    page.main()
    command_line.main()
    memory.main()
