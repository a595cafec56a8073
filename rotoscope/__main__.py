"""The command line as a module: `python -m rotoscope`."""

from rotoscope.cli import main

if __name__ == "__main__":
    main()
