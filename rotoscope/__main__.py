"""`python -m rotoscope`, for launchers that start modules, such as torchrun."""

from rotoscope.cli import main

if __name__ == "__main__":
    main()
