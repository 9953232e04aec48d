"""What a trial needs is read and imported once, in pytest's process, and not in each of its own."""

import linecache
import sys
import traceback

import pytest

from pytest_dataloader_faults import run_trial, wire
from pytest_dataloader_faults._trial.child import preload
from support.datasets import Records

_WHOLE = 4
"""So much linecache knows of a file that it has read."""


class KnowsItsModules(Records):
    """Refuses to make a sample if a module is loaded that pytest's process does not have."""

    known = frozenset()

    def __getitem__(self, index):
        if new := sorted(sys.modules.keys() - self.known):
            message = f"imported in the trial: {new}"
            raise RuntimeError(message)
        return super().__getitem__(index)


class KnowsItsSources(Records):
    """Refuses to make a sample where linecache would have to read a file for the stack."""

    def __getitem__(self, index):
        running = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)}
        unread = {path for path in running if len(linecache.cache.get(path, ())) != _WHOLE}
        if unread := sorted(path for path in unread if not path.startswith("<")):
            message = f"not read: {unread}"
            raise RuntimeError(message)
        return super().__getitem__(index)


class KnowsItsMessages(Records):
    """Refuses to make a sample once the fields of a message had to be looked up."""

    def __init__(self, folder):
        super().__init__(folder)
        self.known = self._looked_up()

    def __getitem__(self, index):
        if (number := self._looked_up()) != self.known:
            message = f"{number - self.known} looked up since"
            raise RuntimeError(message)
        return super().__getitem__(index)

    def _looked_up(self):
        return sum(each.cache_info().misses for each in (wire.readers_of, wire.names_of))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [KnowsItsModules, KnowsItsSources, KnowsItsMessages])
def test_nothing_is_done_again(dataset, workers, records, monkeypatch):
    loader = {"num_workers": workers, "batch_size": 4}
    preload()
    monkeypatch.setattr(KnowsItsModules, "known", frozenset(sys.modules))
    outcome = run_trial(lambda: dataset(records), loader=loader)

    assert outcome.exception is None, outcome.exception.message
    assert len(outcome.delivered) == 4


def _call(action):
    return action()


@pytest.mark.parametrize("name", ["a\0b.py", "of_unknown_encoding.py"])
def test_code_may_name_anything_as_its_file(name, tmp_path, monkeypatch):
    """A worker does not get beyond torch's seeds then, but pytest's process does."""
    (tmp_path / "of_unknown_encoding.py").write_text("# coding: hex\n", encoding="utf-8")
    path = str(tmp_path / name)
    with pytest.raises((LookupError, ValueError)):
        linecache.getlines(path)
    monkeypatch.setattr(_call, "__code__", _call.__code__.replace(co_filename=path))
    _call(preload)

    assert path not in linecache.cache
