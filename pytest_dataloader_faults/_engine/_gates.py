"""When deaths happen [runs in the supervisor]."""

from __future__ import annotations

from collections.abc import Callable


class Gates:
    """Deaths that wait until the loader waits for the very batch that will not come.

    Without that, the number of batches delivered before a death would depend on timing, and torch's
    error would be one of five (the handover of an earlier batch may break instead).
    """

    def __init__(self) -> None:
        self._held: list[tuple[int, int, Callable[[], None]]] = []
        self._waited: dict[int, int] = {}
        self._open = False

    def hold(self, worker: int, nth: int, action: Callable[[], None]) -> None:
        """Do *action* once the loader waits for the *nth* batch of *worker*."""
        self._held.append((worker, nth, action))
        self._let_go()

    def waiting(self, worker: int, nth: int) -> None:
        """The loader waits for the *nth* batch of *worker*."""
        self._waited[worker] = nth
        self._let_go()

    def restart(self) -> None:
        """A new iterator begins, with batches counted anew."""
        self.open_all()
        self._waited.clear()
        self._open = False

    def open_all(self) -> None:
        """The loader waits for nothing any more."""
        self._open = True
        self._let_go()

    def _let_go(self) -> None:
        for entry in list(self._held):
            worker, nth, action = entry
            if self._open or self._waited.get(worker, 0) >= nth:
                self._held.remove(entry)
                action()
