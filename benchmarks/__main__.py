"""Run every benchmark."""

from benchmarks import swaps

if __name__ == "__main__":
    swaps.main()
