"""Run every benchmark."""

from benchmarks import canonical, command_line, depths, memory, multihop, page, swaps

if __name__ == "__main__":
    swaps.main()
    depths.main()
    canonical.main()
    multihop.main()
    page.main()
    command_line.main()
    memory.main()
