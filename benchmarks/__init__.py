"""Speed and memory of the library, as ratios measured in one run: `make bench`."""
