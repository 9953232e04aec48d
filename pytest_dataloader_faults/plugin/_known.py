"""Known failures: with a file of them only new ones fail, and what no longer fails is told.

Some facts about what an entry is about. It has the id of pytest's item, without the group that
pytest-xdist puts behind it, and the name of the part where an item tries several loaders. A dataset
that fails with no fault at all is asked once: the first item of its test fails, and the others are
skipped. Which one is first depends on how pytest-xdist spreads them. So its entry has the id of the
test, and the check ``workers-agree``, which is the one that such a dataset fails.

Each process reads the file. The reports of pytest's items have what an entry says of them, as plain
data, and the main process writes the file and tells what no longer fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pytest_dataloader_faults._arguments import Rule, meant, optional
from pytest_dataloader_faults.battery.checks import require_checks
from pytest_dataloader_faults.exceptions import InvalidArgumentError
from pytest_dataloader_faults.outcomes import CheckResult, Verdict
from pytest_dataloader_faults.outcomes.text import are, counted, cut, printable, shown
from pytest_dataloader_faults.plugin._collector import fail_run
from pytest_dataloader_faults.plugin._failures import write_line
from pytest_dataloader_faults.plugin._options import (
    ATTRIBUTE,
    WRITE_KNOWN,
    KnownFiles,
    asks_check,
    check_asked,
)
from pytest_dataloader_faults.plugin._report import id_of, test_of
from pytest_dataloader_faults.report import files

FAILS_ALONE = "workers-agree"
"""The check that a dataset fails which fails with no fault."""
_ATTRIBUTE, _MISSING = f"{ATTRIBUTE}_known", f"{ATTRIBUTE}_missing"
_SHOWN = 20
"""So many entries are listed."""
_SELECTING = ("keyword", "lf", "stepwise", "ignore", "ignore_glob")
"""Options of pytest that select a part of the tests, for a while or before they are collected."""
_LONGEST_NAME = 100
"""Characters that the name of a check may have, to be quoted in an error."""
_PASSES = (Verdict.SURVIVED, Verdict.FAILED_CLEANLY)
_VERDICTS = [str(each) for each in Verdict if each not in _PASSES]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_later_call(value: object) -> bool:
    return type(value) is int and value > 1


_RULES = {
    "id": Rule(
        lambda value: _is_text(value) and value != "",
        "the id of an item, such as 'test_data.py::test_mine[open-error]'",
    ),
    "check": Rule(
        lambda value: _is_text(value) and len(value) <= _LONGEST_NAME,
        "the name of a check, such as 'open-error'",
    ),
    "verdict": Rule(
        lambda value: value in _VERDICTS, f"a verdict of a failure: {', '.join(_VERDICTS)}"
    ),
    "reason": Rule(_is_text, "a text, which may be empty"),
    "part": optional(_is_text, "the name of a part, such as 'train', or left out"),
    "call": optional(_is_later_call, "the number of a call in its test, 2 or more, or left out"),
}


class Key(NamedTuple):
    """What an entry is about.

    *part*: one of several loaders or datasets; None if there is one. *call*: which call of
    ``fault_check`` it is, in a test that has several, from 1.
    """

    id: str
    check: str
    part: str | None = None
    call: int = 1

    def __str__(self) -> str:
        part = "" if self.part is None else f", part {self.part!r}"
        is_alone = self.check == FAILS_ALONE and self.check not in self.id
        call = f", call {self.call}" if self.call > 1 else ""
        return printable(f"{self.id}{', with no fault' if is_alone else ''}{part}{call}")


class Entry(NamedTuple):
    """One line of the file: what fails, and as what. *reason* is for people; it may be empty."""

    key: Key
    verdict: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain data."""
        which: dict[str, Any] = {} if self.key.part is None else {"part": self.key.part}
        which |= {"call": self.key.call} if self.key.call > 1 else {}
        named = {"id": self.key.id, "check": self.key.check, **which}
        return {**named, "verdict": self.verdict, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Any, where: str) -> Entry:
        """The entry of plain data; *where* is named by the error if it is none."""
        if not isinstance(data, Mapping):
            message = f"{where} must be an object with {', '.join(_RULES)}, got {cut(shown(data))}"
            raise InvalidArgumentError(message)
        for name in data:
            if name not in _RULES:
                advice = meant(name, _RULES) or f"Use {', '.join(_RULES)}"
                message = f"{where} has {cut(shown(name))}, which no entry has. {advice}"
                raise InvalidArgumentError(message)
        given = {"reason": "", **data}
        for name, rule in _RULES.items():
            rule.check(name, given.get(name), where)
        require_checks(f"{where}: check", [given["check"]])
        call = given.get("call") or 1
        key = Key(given["id"], given["check"], given.get("part"), call)
        return cls(key, given["verdict"], given["reason"])


_Entries = dict[Key, Entry]


def read(path: str, where: str) -> _Entries:
    """The entries of the file *path*, which *where* names; InvalidArgumentError if it is none."""
    named = f"known={path!r} from {where}"
    try:
        found = files.read_json(path)
    except OSError as error:
        message = (
            f"{named} cannot be read: {error.strerror}. Give the path of a file of known failures,"
            f" or write one: pytest {WRITE_KNOWN}={path}"
        )
        raise InvalidArgumentError(message) from error
    except InvalidArgumentError as error:
        raise _refused(f"{named} is no file of known failures: {error}", path) from None
    if not isinstance(found, list):
        raise _refused(f"{named} must have a list of entries, got {cut(shown(found))}", path)
    try:
        return _entries(found, named)
    except InvalidArgumentError as error:
        raise _refused(str(error), path) from None


def _entries(found: list[Any], named: str) -> _Entries:
    """The entries of *found*, each of which is about something else."""
    entries: _Entries = {}
    places: dict[Key, int] = {}
    for place, data in enumerate(found, start=1):
        entry = Entry.from_dict(data, f"{named}: entry {place}")
        if entry.key in entries:
            both = f"{named}: entries {places[entry.key]} and {place}"
            message = f"{both} are both about {cut(str(entry.key))}. Leave one"
            raise InvalidArgumentError(message)
        entries[entry.key], places[entry.key] = entry, place
    return entries


def _refused(problem: str, path: str) -> InvalidArgumentError:
    advice = f"Correct it, or remove the file and write it again: pytest {WRITE_KNOWN}={path}"
    return InvalidArgumentError(f"{problem}. {advice}")


def _written(entries: Iterable[Entry]) -> str:
    """The text of a file: a line for each entry, by id."""
    ordered = sorted(entries, key=lambda each: (*each.key[:2], each.key.part or "", each.key.call))
    lines = [json.dumps(each.to_dict(), ensure_ascii=False) for each in ordered]
    return "[\n{}\n]\n".format(",\n".join(lines)) if lines else "[]\n"


_FAILS, _KNOWN, _PASSED = "fails", "known", "passes"
"""What an item shows of a key: a failure that is not in the file, one that is, and none."""
_GRAVEST = (_FAILS, _KNOWN, _PASSED)


class _Seen(NamedTuple):
    key: Key
    state: str
    verdict: str


_seen = pytest.StashKey[list[_Seen]]()
"""What an item has shown so far."""


KNOWN = pytest.StashKey["KnownFailures"]()
"""Where a run keeps its known failures, if it has a file of them."""


class KnownFailures:
    """The known failures of a run; it is registered with pytest in each process.

    *given*: what the options say.
    """

    def __init__(self, given: KnownFiles) -> None:
        self._given = given
        self._target = os.path.abspath(given.write)  # A test may change the working directory.
        # What a device or a FIFO would give is not what was written there.
        is_there = os.path.isfile(given.write) or os.path.isdir(given.write)
        is_same = os.path.realpath(given.write) == os.path.realpath(given.read)
        is_first = given.write and not is_there and is_same
        self._entries = read(given.read, given.where) if given.read and not is_first else {}
        self._former = read(given.write, WRITE_KNOWN) if is_there else {}
        self._unread: set[str] = set()
        self._missing: set[Key] = set()
        self._found: dict[str, list[_Seen]] = {}
        self._unwritten: set[str] = set()
        self._told: list[tuple[str, bool]] = []

    def excused(
        self,
        node: pytest.Item,
        result: CheckResult,
        fails: Callable[[CheckResult], bool],
        *,
        alone: bool,
        call: int,
    ) -> CheckResult:
        """*result* of one dataset, expected if the file says that it fails so.

        *call*: which one of its test it is. *alone*: whether the dataset fails with no fault at
        all. What no trial has shown is as it was: nothing is known of a dataset that cannot be
        tried.
        """
        if result.outcome is None or not result.applies:
            return result
        test = Key(test_of(node, result.check), FAILS_ALONE, result.part, call)
        key = test if alone else Key(id_of(node), result.check, result.part, call)
        verdict, entry = str(result.verdict), self._entries.get(key)
        if not alone and test in self._entries:
            self._note(node, _Seen(test, _PASSED, verdict))
        if not fails(result):
            if result.passed and result.reproduced:
                self._note(node, _Seen(key, _PASSED, verdict))
            return result
        is_known = entry is not None and entry.verdict == verdict
        self._note(node, _Seen(key, _KNOWN if is_known else _FAILS, verdict))
        if entry is None:
            return result
        if is_known:
            return replace(
                result, expected=printable(entry.reason) or f"known by {self._given.read}"
            )
        text = f"{self._given.read} has {entry.verdict} for it. {result.explanation}"
        return replace(result, explanation=text)

    def _note(self, node: pytest.Item, seen: _Seen) -> None:
        node.stash.setdefault(_seen, []).append(seen)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give the report what was seen. A failure that the test itself caught is none."""
        report = yield
        if call.when == "setup":
            item.stash[_seen] = []
        if call.when == "call":
            states = {_PASSED}
            if report.failed:
                states = {_FAILS, _KNOWN, _PASSED}
            elif hasattr(report, "wasxfail"):
                states = {_KNOWN, _PASSED}
            seen = item.stash.get(_seen, [])
            kept = [[list(each.key), *each[1:]] for each in seen if each.state in states]
            setattr(report, _ATTRIBUTE, kept)
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected, or was skipped: nothing is known of what is in it."""
        if not report.passed:
            self._unread.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Find the entries that belong to no item, before options deselect any."""
        asking = [(item, check_asked(item)) for item in items if asks_check(item)]
        there = {(id_of(item), check) for item, check in asking}
        there |= {(test_of(item, check), FAILS_ALONE) for item, check in asking}
        known = {**self._entries, **self._former}
        self._missing = {
            key for key in known if key[:2] not in there and self._is_looked_for(key.id)
        }
        if hasattr(config, "workeroutput"):
            config.workeroutput[_MISSING] = [list(each) for each in self._missing]

    def _is_looked_for(self, nodeid: str) -> bool:
        """Whether an item of this id would have been collected from a file."""
        is_named = ":" in nodeid.partition("::")[0]  # Which datasets are named differs by run.
        return not is_named and not any(map(nodeid.startswith, self._unread))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of pytest-xdist did not collect."""
        for each in getattr(node, "workeroutput", {}).get(_MISSING, ()):
            self._missing.add(Key(*each))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was seen; of an item that runs again, the last result holds."""
        if report.when == "setup":
            self._found.pop(report.nodeid, None)
            self._unwritten.discard(report.nodeid)
        if seen := getattr(report, _ATTRIBUTE, ()):
            self._found[report.nodeid] = [_Seen(Key(*key), *rest) for key, *rest in seen]
        states = {each.state for each in self._found.get(report.nodeid, ())}
        if report.failed and hasattr(report, ATTRIBUTE) and _FAILS not in states:
            self._unwritten.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, or else find what is in it and does not fail."""
        config = session.config
        if hasattr(config, "workerinput") or config.getoption("collectonly", default=False):
            return
        missing = self._missing if _is_whole(config) else set()
        if self._given.write:
            self._write(session, missing)
        else:
            self._compare(session, missing)

    def _states(self) -> dict[Key, _Seen]:
        """What the run shows of each key, the gravest."""
        every = [each for found in self._found.values() for each in found]
        every.sort(key=lambda each: -_GRAVEST.index(each.state))
        return {each.key: each for each in every}

    def _write(self, session: pytest.Session, missing: set[Key]) -> None:
        """Write what fails, and what this run has not asked."""
        states = self._states()
        known = {**self._entries, **self._former}
        kept = [self._former[key] for key in self._former.keys() - states.keys() - missing]
        failing = [each for each in states.values() if each.state != _PASSED]
        entries = kept + [
            Entry(each.key, each.verdict, known[each.key].reason if each.key in known else "")
            for each in failing
        ]
        try:
            files.write_text(_written(entries), self._target)
        except OSError as error:
            problem = f"the known failures were not written: {error}"
            fail_run(session, problem, pytest.ExitCode.USAGE_ERROR)
            return
        count, path = counted(len(entries), "known failure"), self._given.write
        self._tell(f"{count} written to {path}{_open(entries)}")
        if others := len(self._unwritten):
            whom = "it" if others == 1 else "them"
            text = f"{counted(others, 'failure')} {are(others)} not among them"
            self._tell(f"{text}, as no check found {whom}")

    def _compare(self, session: pytest.Session, missing: set[Key]) -> None:
        """Tell what is in the file and does not fail; with *strict*, that fails the run."""
        states = self._states()
        mended = [key for key in self._entries if key in states and states[key].state == _PASSED]
        gone = [key for key in self._entries if key in missing]
        again = f"write the file again, by {WRITE_KNOWN}={self._given.read}"
        for keys, forms in ((mended, _MENDED), (gone, _GONE)):
            if keys:
                what = forms[len(keys) > 1]
                self._tell(f"{self._given.read}: {len(keys)} {what}, or {again}:", is_problem=True)
                for line in _listed(keys):
                    self._tell(f"  {line}", is_problem=True)
        if (mended or gone) and self._given.strict and session.exitstatus == pytest.ExitCode.OK:
            reason = f"the run fails because of {self._given.strict}: {_stale(mended, gone)}"
            fail_run(session, f"{reason} in {self._given.read}", pytest.ExitCode.TESTS_FAILED)

    def _tell(self, text: str, *, is_problem: bool = False) -> None:
        self._told.append((text, is_problem))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was written or found."""
        colour = "red" if self._given.strict else "yellow"
        for text, is_problem in self._told:
            write_line(terminalreporter, text, **({colour: True} if is_problem else {}))


_MENDED = (
    "known failure no longer fails. Remove it",
    "known failures no longer fail. Remove them",
)
_GONE = (
    "known failure belongs to no item. Correct its id, remove it",
    "known failures belong to no item. Correct their ids, remove them",
)
"""What is told of one entry, and of several."""


def _stale(mended: list[Key], gone: list[Key]) -> str:
    """How many entries no longer fail, and how many match no test."""
    fixed, unmatched = len(mended), len(gone)
    texts = [
        f"{counted(fixed, 'known failure')} no longer fail{'s' if fixed == 1 else ''}",
        f"{counted(unmatched, 'known failure')} {'matches' if unmatched == 1 else 'match'} no test",
    ]
    return ", ".join(text for text, keys in zip(texts, (mended, gone), strict=True) if keys)


def _listed(keys: list[Key]) -> Iterator[str]:
    yield from map(str, keys[:_SHOWN])
    if len(keys) > _SHOWN:
        yield f"... and {len(keys) - _SHOWN} more"


def _open(entries: list[Entry]) -> str:
    """How many of *entries* have no reason yet."""
    count = sum(not each.reason for each in entries)
    return f", {count} without a reason" if count else ""


def _is_whole(config: pytest.Config) -> bool:
    """Whether the run is one of all tests, as far as the command line and the folder say."""
    is_selected = any(config.getoption(name, default=None) for name in _SELECTING)
    if is_selected or config.args_source is config.ArgsSource.ARGS:
        return False
    is_configured = config.args_source is config.ArgsSource.TESTPATHS
    return is_configured or config.invocation_params.dir == config.rootpath
