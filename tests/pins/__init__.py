"""Pins: outputs that no redesign may change, kept in `golden/` and made again by `make pins`.

Every case uses the public surface (`import rotoscope as rs`) or the command line, and nothing else of the package, so
that a pin outlives any change of what is inside. A golden file holds each column in one line: where a column was renamed,
its name is changed there and in the case, and every number stays as it was pinned.
"""
