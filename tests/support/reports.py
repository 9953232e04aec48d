"""Reports with every kind of item, and texts that harm what prints them without care."""

from dataclasses import replace

from pytest_dataloader_faults.outcomes import Event
from pytest_dataloader_faults.report.model import Item, Report, Run

HOSTILE = "<script>alert(1)</script> | `x` ](http://e) \x1b[31m\n::error::no, %0A"
HOSTILE_MARKUP = (
    "</script></style></pre></summary></details>-->]]>"
    "<img src=x onerror=alert(1)><a href=javascript:alert(1)>\"'&lt;"
    "\0\x1b[2J\u202eabc\u2066\u200f {{ 1 + 1 }} {% endfor %}" + "long" * 200
)


def item(test="a.py::test", check="open-error", **changes):
    usual = Item(
        nodeid=f"{test}[{check}]",
        test=test,
        file="a.py",
        line=7,
        check=check,
        status="passed",
        verdict="survived",
        sentence="every sample came.",
        explanation="survived: every sample came.",
        duration=0.5,
    )
    return replace(usual, **changes)


def failed(**changes):
    fields = {
        "status": "failed",
        "verdict": "corrupted",
        "sentence": "sample 0 is wrong.",
        "explanation": "corrupted: sample 0 is wrong.\n  evidence\n",
        "cause": "gives zeros",
        "reproduce": "pytest 'a.py::test[open-error]'",
    }
    return item(**{**fields, **changes})


def events(faults=1):
    """A trial of two workers, which get faults; one of them then hangs."""
    return (
        Event(0.05, "loader", "epoch", "epoch 1 begins"),
        *(
            Event(0.1 + number / 1000, "worker 1", "fault", f"ReadError: read /data/{number}.bin")
            for number in range(faults)
        ),
        Event(0.2, "worker 0", "fault", "ReadError: read /data/0.bin"),
        Event(20.0, "loader", "error", "TimeoutError"),
        Event(20.1, "worker 0", "exit", "SIGKILL"),
    )


RUN = Run(began="2026-01-02T03:04:05+00:00", duration=6.7, command="pytest -q", seed=8)
MIXED = Report(
    runs=(RUN,),
    items=(
        item(check="workers-agree", trials=(0.2,)),
        failed(trials=(0.4, 0.6), notes=("64 of 100 samples were checked",)),
        failed(check="truncated-file"),
        failed(check="persistent-workers", verdict="leaked", cause="leaves resources behind"),
        item(check="pin-memory", status="not_applicable", verdict=None),
        item(test="b.py::other"),
    ),
)

EVERYTHING = replace(
    MIXED,
    versions={"python": "3.11.7", "torch": "2.13.0"},
    items=(
        *MIXED.items,
        failed(test="b.py::other", check="hung-read", verdict="hung", timeline=events()),
        failed(test="b.py::other", check="persistent-workers", verdict="leaked"),
        failed(test="b.py::other", check="pickles", status="xfailed"),
        item(test="c.py::third", status="flaky"),
    ),
)
"""With every status, and a timeline."""
