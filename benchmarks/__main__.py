"""Run every benchmark."""

from benchmarks import canonical, swaps

if __name__ == "__main__":
    swaps.main()
    canonical.main()
