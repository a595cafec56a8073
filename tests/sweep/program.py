"""The command line as a module, so that it is that of this project wherever it is started."""

from rotoscope.cli import main

if __name__ == "__main__":
    main()
