"""Prompts on several devices at once: each has the whole model, and takes the next batch when it is done with one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from rotoscope.analysis.measures import exact_products
from rotoscope.analysis.nulls import Null
from rotoscope.reading import HeadReader, Subject

T = TypeVar("T")
R = TypeVar("R")


class Team(Generic[R]):
    """Those who do the work: readers of copies of one model, or draws of a null with such readers."""

    def __init__(self, members: Sequence[R]) -> None:
        self.members = members

    @contextmanager
    def at_work(self, items: Sequence[T], work: Callable[[R, T], Any]) -> Iterator[list[Callable[[], Any]]]:
        """For each item, a function that gives what was made of it, and waits for it where it must.

        One member alone works when it is asked. Several begin at once; what is not begun when the context ends never is.
        """
        if len(self.members) == 1:
            yield [lambda item=item: work(self.members[0], item) for item in items]  # type: ignore[misc]
            return
        free: SimpleQueue[R] = SimpleQueue()
        for member in self.members:
            free.put(member)

        def done(item: T) -> Any:
            member = free.get()
            try:
                return work(member, item)
            finally:
                free.put(member)

        # Set once for all threads: what one of them sets back, another may still need.
        with exact_products(), ThreadPoolExecutor(len(self.members)) as pool:
            made: list[Future[Any]] = [pool.submit(done, item) for item in items]
            try:
                yield [one.result for one in made]
            finally:
                for one in made:
                    one.cancel()


def readers_of(subject: Subject, reader: HeadReader) -> Team[HeadReader]:
    """The reader of a subject, and one for every copy of it, whose reading needs no proof of its own."""
    return Team([reader, *(HeadReader(model, prove=False) for model in subject.copies)])


def draws_of(nulls: dict[int, Null], team: Team[HeadReader]) -> Team[dict[int, Null]]:
    """The same draws for every device: of the subject itself, or of copies of a random model."""
    first = next(iter(nulls.values()))
    if len(team.members) == 1:
        return Team([nulls])
    if first.reader is team.members[0]:
        others: list[HeadReader] = list(team.members[1:])
    else:
        places = [member.device for member in team.members[1:]]
        models = [copy.deepcopy(first.reader.model).to(place) for place in places]
        others = [HeadReader(model, prove=False) for model in models]
    more = [{draw: replace(null, reader=reader) for draw, null in nulls.items()} for reader in others]
    return Team([nulls, *more])
