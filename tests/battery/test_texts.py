"""The complete texts of checks, of reasons why they do not apply, and of refused arguments."""

import functools
import math
import signal
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import pytest_dataloader_faults as package
from pytest_dataloader_faults import _settings, exceptions, faults
from pytest_dataloader_faults.battery import checking, sweeping, targets
from pytest_dataloader_faults.battery.checks import CHECKS
from pytest_dataloader_faults.battery.checks.memory import WorkerMemory
from pytest_dataloader_faults.battery.checks.ranks import WITHOUT_RANKS
from pytest_dataloader_faults.battery.fault_free_run import FollowedRun
from pytest_dataloader_faults.battery.workload import Workload
from pytest_dataloader_faults.faults.base import explain_invalid_fault
from pytest_dataloader_faults.injection import inject
from pytest_dataloader_faults.outcomes import (
    FaultFacts,
    FileCounts,
    Finding,
    Footprint,
    Pass,
    Reference,
    Verdict,
    WorkerDeath,
    WorkerFacts,
)
from pytest_dataloader_faults.outcomes.agreement import EXACT, Sample
from pytest_dataloader_faults.outcomes.contract import Cause
from pytest_dataloader_faults.outcomes.repeats import JudgedTrial
from pytest_dataloader_faults.outcomes.stages import DONE, StateOf
from pytest_dataloader_faults.search import replay
from support.facts import EIO, EPOCH_1, fired, ordinary, raised, revised, unfired
from support.judging import refusal_of

DATA, TEXT = "/data/a.bin", "/data/index.json"
READ, OPENED, MAPPED = FileCounts(1, 2, 64), FileCounts(1, 0, 0), FileCounts(0, 1, 0)
WRITTEN = FileCounts(1, 0, 0, 1)
EXHAUSTED = faults.DescriptorExhaustion()
LISTENING = {"tallies": {"connections": {"tcp://192.0.2.1:443": 1}}}


def _workload(*files, globs=("*",), changes=None, fetches=1, **counts):
    workers = tuple(
        WorkerFacts(number, 7 + number, fetches, files=counts_by_path, **counts)
        for number, counts_by_path in enumerate(files)
    )
    fault_free = revised(ordinary(Pass(EPOCH_1, complete=True)), processes=workers, **changes or {})
    paths = frozenset(path for counts_by_path in files for path in counts_by_path)
    return Workload(fault_free, globs, paths)


def _of_length(length, **changes):
    changes = {"start_method": "fork", **changes}
    return _workload({DATA: READ}, changes={**changes, "epochs": (Pass(EPOCH_1, length=length),)})


NOTHING = _workload({})
READS = _workload({DATA: READ})
PLANS = {
    "nothing is read": ("read-error", NOTHING),
    "unobserved reads": ("read-error", _workload({DATA: OPENED}, unobserved={"io_uring_setup": 2})),
    "connections": ("read-error", _workload({}, **LISTENING)),
    "open before": ("open-error", _workload({DATA: MAPPED}, changes={"start_method": "spawn"})),
    "open before the fork": (
        "open-error",
        _workload({DATA: MAPPED}, changes={"start_method": "fork"}),
    ),
    "mapped before": ("truncated-file", _workload({DATA: MAPPED})),
    "fork server": (
        "worker-killed-sending",
        _workload({DATA: READ}, changes={"start_method": "forkserver"}),
    ),
    "no file": ("read-error", NOTHING),
    "writes elsewhere": ("write-error", _workload({DATA: WRITTEN})),
    "writes nothing": ("write-error", READS),
    "written before": ("write-error", replace(READS, cached=(DATA,))),
    "no connection": ("connection-error", READS),
    "in workers only": (
        "read-before-fork",
        replace(READS, reference=Reference("map", (), workers=1)),
    ),
    "a stream": ("copy-on-write", _of_length(None, kind="iterable")),
    "few samples": ("copy-on-write", _of_length(1023)),
    "indices that are no integers": ("memory-exhaustion", NOTHING),
    "spawned workers": ("copy-on-write", _of_length(1024, start_method="spawn")),
    "no thread": ("thread-exhaustion", READS),
    "no state": ("resumes", READS),
    "state of the dataset": (
        "resumes",
        _workload({DATA: READ}, changes={"state_of": StateOf.UNAVAILABLE}),
    ),
}


_ENDLESS = replace(EXACT, limit=10)
APPLICABILITY = {
    "nothing is used": NOTHING,
    "unobserved reads": _workload({DATA: OPENED}, unobserved={"io_uring_setup": 2}),
    "connections only": _workload({}, **LISTENING),
    "connections and reads": _workload({DATA: READ}, fetches=4, **LISTENING),
    "opened only": _workload({DATA: OPENED}),
    "mapped before the fork": _workload({DATA: MAPPED}, changes={"start_method": "fork"}),
    "mapped before, next to files that are read": _workload({DATA: MAPPED, TEXT: READ}),
    "several kinds": _workload({DATA: OPENED, TEXT: FileCounts(1, 1, 64)}),
    "written in the trial's folder": replace(
        _workload({DATA: READ, "/trial/copy.bin": WRITTEN}),
        own_folders=targets.OwnFolders(("/trial",)),
    ),
    "endless, with a state": _workload(
        {DATA: READ}, changes={"state_of": StateOf.LOADER, "comparison": _ENDLESS}
    ),
    "random, with a state": _workload(
        {DATA: READ},
        changes={
            "state_of": StateOf.LOADER,
            "comparison": replace(_ENDLESS, differs_per_worker=True),
        },
    ),
}
"""Workloads to which several checks do not apply, for which more than one reason is true."""


def test_which_checks_apply(golden):
    tables = {}
    for title, workload in APPLICABILITY.items():
        names_by_reason = defaultdict(list)
        for name, check in CHECKS.items():
            if refusal := refusal_of(check.plan_scenarios, workload):
                group = f" [{refusal.group}]" if refusal.group else ""
                names_by_reason[f"{refusal.full_reason}{group}"].append(name)
        reasons = (f"{', '.join(names)}: {text}" for text, names in names_by_reason.items())
        tables[title] = "\n".join(reasons)
    golden("applicability", tables)


def test_texts_of_checks(golden):
    texts = {
        f"{check.name}: {name}": text
        for check in CHECKS.values()
        for name in ("promise", "preface", "advice")
        if (text := getattr(check, name))
    }
    golden("checks", {**texts, "without ranks": WITHOUT_RANKS})


def test_reasons_why_checks_do_not_apply(golden):
    plans = {
        f"{name}: {title}": refusal_of(CHECKS[name].plan_scenarios, workload).full_reason
        for title, (name, workload) in PLANS.items()
    }
    trial = READS.fault_free
    closed = FaultFacts(faults.ClosedDescriptor(TEXT), 0)
    footprints = tuple(Footprint(epoch, "worker 0", 0, 0, 1) for epoch in range(1, 3))
    trials = {
        "short-read": revised(trial, faults=(FaultFacts(EIO, 0),)),
        "read-error-once": revised(trial, faults=unfired(EIO)),
        "closed-descriptor": revised(trial, schedule=(closed.fault,), faults=(closed,)),
        "descriptor-exhaustion": revised(trial, faults=fired(EXHAUSTED, path=None), timed_out=True),
    }
    second = CHECKS["thread-exhaustion"].plan_scenarios(
        _workload({}, tallies={"starts": {"thread": 2}})
    )[-1]
    memories = {
        "not measured": (),
        "too few in time": (WorkerMemory(2048, 2, 1, (64,), (0,), (0,)),),
        "few are drawn": (WorkerMemory(500, 2, 1),),
        "unknown draws": (WorkerMemory(0, 2, 1),),
        "an error": (WorkerMemory(2048, 2, 1, error="ValueError: sample 777 is damaged"),),
    }
    skips = {
        f"{name}: after its trial": refusal_of(
            CHECKS[name].scenario.require_effect, READS, trial
        ).full_reason
        for name, trial in trials.items()
    }
    (kept,) = CHECKS["persistent-workers"].plan(READS)
    few = revised(trial, footprints=footprints)
    refusal = refusal_of(kept.require_effect, READS, few)
    skips["persistent-workers: after its trial"] = refusal.full_reason
    stream = replace(READS, fault_free=revised(trial, kind="iterable"))
    (scarce,) = CHECKS["memory-exhaustion"].plan(stream)
    small = revised(trial, faults=(FaultFacts(faults.MemoryExhaustion(), 0),))
    refusal = refusal_of(scarce.require_effect, READS, small)
    skips["memory-exhaustion: after its trial"] = refusal.full_reason
    require_effect = CHECKS["copy-on-write"].scenario.require_effect
    skips |= {
        f"copy-on-write: {title}": refusal_of(
            require_effect, READS, revised(trial, notes=notes, phase=DONE)
        ).full_reason
        for title, notes in memories.items()
    }
    network = _workload({}, fetches=4, **LISTENING)
    for name, title, unobserved in (
        ("hung-read", "no response", {}),
        ("http-error", "no request", {}),
        ("http-error", "encrypted", {"TLS connection": 1}),
    ):
        scenario = CHECKS[name].plan_scenarios(network)[0]
        workers = (WorkerFacts(0, 7, 1, {}, unobserved),)
        unmet = revised(trial, faults=(FaultFacts(*scenario.faults, 0),), processes=workers)
        refusal = refusal_of(scenario.require_effect, network, unmet)
        skips[f"{name}: {title}"] = refusal.full_reason
    skips["thread-exhaustion: no second start"] = refusal_of(
        second.require_effect, READS, revised(trial, faults=unfired(*second.faults))
    ).full_reason
    golden("reasons", plans | skips)


def test_sentences_of_checks(golden):
    failing = Pass(EPOCH_1, exception=raised("OSError", "late"))
    trial = revised(READS.fault_free, epochs=(Pass(EPOCH_1, complete=True), failing))
    (facts,) = fired(EIO)
    in_epoch_1 = replace(facts, firings=tuple(replace(each, epoch=1) for each in facts.firings))
    dead = replace(failing, deaths=(WorkerDeath(1, 4711, -signal.SIGSEGV),))
    crashed = ordinary(dead, fired(faults.MemoryExhaustion(), path=None, call="mmap of 1.0 MiB"))
    sentences = {
        "two-epochs": (trial, Reference("iterable", ((0, Sample("d0")),), second_pass_count=0)),
        "read-error-once": (revised(trial, faults=(in_epoch_1,)), None),
        "memory-exhaustion": (crashed, None),
    }
    rules = {name: CHECKS[name].rule(*facts).sentence for name, facts in sentences.items()}
    golden("rules", rules | _texts_on_memory(trial))


def _texts_on_memory(trial):
    check = CHECKS["copy-on-write"]
    steady, constant = tuple(range(0, 16 << 20, 1 << 20)), (0,) * 16
    samples = tuple(range(64, 1025, 64))
    kinds = {
        "copies": WorkerMemory(20_000, 2, 256 << 20, samples, steady, constant, 1 << 30),
        "keeps": WorkerMemory(20_000, 1, 256 << 20, samples, steady, steady),
        "shares": WorkerMemory(20_000, 2, 256 << 20, samples, constant, constant),
    }
    outcomes = {kind: revised(trial, notes=(memory,)) for kind, memory in kinds.items()}
    texts = {
        f"copy-on-write: {kind}": check.rule(outcomes[kind], None).sentence
        for kind in ("copies", "keeps")
    }
    passing = {
        f"copy-on-write: a dataset that {kind}": check.describe(
            outcome, Finding(Verdict.SURVIVED, "every sample was delivered")
        )
        for kind, outcome in outcomes.items()
    }
    return texts | passing


def test_notes_on_files(golden):
    run = _workload({DATA: READ, TEXT: FileCounts(1, 2, 64, 1)}).fault_free
    caches = ("/cache/a.npy", "/cache/b.npy")
    rewritten, by_workers = (
        FollowedRun(_workload(dict.fromkeys(caches, counts)).fault_free, frozenset(caches))
        for counts in (READ, READ._replace(writes=1))
    )
    (created,) = targets.notes_on_changed((DATA,), run)
    (written,) = targets.notes_on_changed((TEXT,), run)
    (workers,) = targets.note_on_workers(replace(Reference("map", ()), lacks_workers=True))
    refusals = {
        f"refusal: {each.writer}": each.refusal(("*.npy",)).full_reason
        for each in (rewritten, by_workers)
    }
    notes = {"made": created, "written": written, "workers": workers, **refusals}
    golden("notes", {**notes, "rewritten": "\n".join(rewritten.notes(("*.npy",)))})


ARGUMENTS = {
    "class": lambda: inject(faults.ReadError),
    "other class": lambda: inject(OSError),
    "list": lambda: inject([faults.ReadError()]),
    "tuple of a class": lambda: inject((faults.ReadError,)),
    "no fault": inject,
    "glob": lambda: inject("*.jpg"),
    "errno": lambda: faults.ReadError(errno=0),
    "unknown check": lambda: checking.select_checks("open-eror"),
    "no name": lambda: checking.select_checks(only=""),
    "no check left": lambda: checking.select_checks("pickles", "pickles"),
    "globs": lambda: _settings.parse_globs([]),
    "loader": lambda: _settings.check(loader=[1]),
    "no match": lambda: targets.require_match(("*.jpg",), READS.fault_free),
}


CALLS = [
    "ReadError(nht=2)",
    "WorkerKilled(path='*')",
    "Contract(may_skp=True)",
    "Contract(xyz=1)",
    "from_dict({})",
    "from_dict({'kind': 'ReadErorr'})",
    "from_dict({'kind': 'ReadError', 'path': '*', 'nht': 2})",
    "from_dict({'kind': 'ReadError', 'path': '*', 'nth': 0})",
    "ClosedDescriptor(sample=3, nth=2)",
    "WorkerKilled(sample=3, at=2)",
    "WorkerKilled(sample=3, reading='*')",
    "WorkerKilled(sample=3, sending=True)",
    "WorkerKilled(reading='*', sending=True)",
    "WorkerKilled(reading='a', writing='b')",
    "WorkerKilled(reading='tcp://*')",
    "OpenError('tcp://*')",
    "ReadError(('*', 'tcp://*'))",
    "HungRead(('*', 'tcp://*.example.org'))",
    "ConnectError('tcp://localhost:*')",
    "ConnectError('*.jpg')",
    "ConnectionReset(('tcp://*', '*'))",
    "ThreadExhaustion('*.jpg')",
    "MemoryExhaustion(Path('a.jpg'))",
    "Contract(may_skip='yes')",
    "Contract(may_substitute=1)",
    "Contract(survives=1)",
    "Contract(key=3)",
    "Contract(split=4)",
    *(
        f"{function}(list, {name}={each!r})"
        for function in ("run_trial", "check_dataset")
        for name, values in (
            ("deadline", (-1, 0, 0.0, -0.5, math.nan, math.inf, "30", True, [1])),
            ("seed", (-1, 1.5, "0", None, 2**32, 2**64)),
        )
        for each in values
    ),
    "run_trial(list, deadline=None)",
    "run_trial(list, deadline=10**400)",
    *(f"run_trial(list, epochs={each!r})" for each in (0, -1, 1.5, "2", None, True)),
    *(f"run_trial(list, ranks={each!r})" for each in (0, 1, 9, 1.5, True)),
    *(f"run_trial(list, ranks=2, on_rank={each!r})" for each in (2, -1, True, "last")),
    "run_trial(list, on_rank=0)",
    "run_trial(list, ranks=2, before_init=True)",
    "run_trial(list, before_init='yes')",
    *(f"check_dataset(list, on_fail={each!r})" for each in ("raises", "", True, False, 0)),
    *(
        f"check_dataset(list, {argument})"
        for name in ("read-error-frist", "worker-kiled")
        for argument in (
            *(f"only=[{name!r}]", f"exclude=[{name!r}]", f"expected_failures={{{name!r}: 'slow'}}"),
        )
    ),
    "check_dataset(list, contract={'survives': True})",
    "check_dataset(list, expected_failures=['read-error'])",
    "check_dataset(list, expected_failures={'read-error': ''})",
    "check_dataset(list, files=[])",
    "check_dataset(list, files=[b'*'])",
    "check_dataset(list, samples=0)",
    "require_templates([ReadError(probability=0.5)])",
    "sweep([1], faults=[HungRead()])",
    "require_templates([ListingOrder()])",
    "require_templates(['read'])",
    "require_templates([ReadError])",
    "require_templates(ReadError())",
    "require_templates([])",
    "explore(list, max_examples=0)",
    "explore(list, deadline=0)",
    "explore(list, kinds=3)",
    "explore(list, kinds=[OpenError()])",
    "explore(list, faults=[OpenError()])",
    "explore(list, loader=3)",
    "explore(list, max_exampels=3)",
    "explore(list, deadlin=3)",
    "explore(list, colour=3)",
    "replay(list, OpenError(), loader=3)",
    "replay(list, OpenError(), contract=3)",
    "sweep(list, max_trials=0)",
    "sweep(list, on_fail='ignore')",
]
"""Arguments that there are not, that cannot come together, or of wrong kinds."""
NAMES = {
    **vars(faults),
    **vars(math),
    "Path": Path,
    "replay": replay,
    "require_templates": sweeping._require_templates,
} | {name: getattr(package, name) for name in package.__all__}


def test_texts_of_refused_arguments(golden):
    texts = {"no fault at all": explain_invalid_fault(3)}
    calls = {code: functools.partial(eval, code, NAMES) for code in CALLS}
    for title, call in {**ARGUMENTS, **calls}.items():
        with pytest.raises(exceptions.InvalidArgumentError) as refused:
            call()
        texts[title] = str(refused.value)
    golden("arguments", texts)


def test_a_failure_without_a_fault_has_no_advice_of_its_check():
    error = Pass(EPOCH_1, exception=raised("ValueError", "the server said no"))
    finding = Finding(Verdict.FAILS_WITHOUT_FAULT, "it failed")
    trial = JudgedTrial(ordinary(error), finding)

    for name in ("two-epochs", "persistent-workers"):
        assert CHECKS[name].advice
        assert checking._advice(name, trial, Cause("fails without a fault")) == ()
    assert checking._advice("read-before-fork", trial, Cause("")) != ()
