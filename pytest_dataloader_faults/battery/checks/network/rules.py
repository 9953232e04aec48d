"""What a dataset did with a connection, and why. Pure.

Some facts about a missing object. 404 and 410 are answers of a server that works: the object does
not exist, and the next attempt will not find it either. So a dataset may skip the object, raise
whatever error it has for a missing sample, and remember the answer. But a page, zeros or anything
else that is no sample of the reference must not take its place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from http import HTTPStatus

from pytest_dataloader_faults.faults import HttpError
from pytest_dataloader_faults.faults.network import UNLIMITED_WAITS
from pytest_dataloader_faults.outcomes.contract import Cause, Contract, Finding, Verdict
from pytest_dataloader_faults.outcomes.judge import Judge
from pytest_dataloader_faults.outcomes.judge.compare import has_unknown_sample
from pytest_dataloader_faults.outcomes.judge.hangs import loader_timed_out
from pytest_dataloader_faults.outcomes.judge.starts import (
    is_not_forked,
    sending_cause,
    start_cause,
)
from pytest_dataloader_faults.outcomes.records import TrialFacts
from pytest_dataloader_faults.outcomes.reference import Reference
from pytest_dataloader_faults.outcomes.stages import Evidence
from pytest_dataloader_faults.wire import register

ERROR_PAGE = Cause(
    "uses the error page of a server as data",
    "The page that a server sent with an error status became part of a sample. Check the status"
    " before you use the body: call response.raise_for_status(), or with urllib3 raise an error"
    " unless response.status is 200",
    fix="call response.raise_for_status() before you use the body",
)
NO_TIMEOUT = Cause(
    "waits for a server without a timeout",
    "Set a timeout in the client, for example requests.get(url, timeout=30), urlopen(url,"
    " timeout=30) or socket.setdefaulttimeout(30). Servers do disappear without closing the"
    " connection",
    fix="set a timeout in the client, such as requests.get(url, timeout=30)",
)
_CONNECTION = "uses a connection that was opened before the fork"
_SHARED_CONNECTION = (
    "The dataset opened {} before the workers started, and they all used it, so that one may get"
    " the answer for another: open it in the worker, on first access"
)
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_ANSWERED = "nothing but samples of the reference was delivered; a missing object may be skipped"
_OF_CONNECTION = (Verdict.CORRUPTED, Verdict.FAILS_WITHOUT_FAULT, Verdict.POISONED)


@dataclass(frozen=True)
class SharedConnection(Evidence):
    """A connection or pipe from before the workers started, on which data arrived while they ran.

    Attributes:
        name: What it leads to, such as ``"a connection to 127.0.0.1:9000"``.
        collided: Whether two workers were about to send on it at once, and one wanted an answer.
    """

    name: str
    collided: bool = False

    @property
    def cause(self) -> Cause:
        """The cause, if the dataset fails because its workers share the connection."""
        advice = _SHARED_CONNECTION.format(self.name)
        return Cause(_CONNECTION, advice, fix="open the connection in the worker, on first access")

    @property
    def finding(self) -> Finding | None:
        """The violation, if nothing kept the requests of two workers apart."""
        if not self.collided:
            return None
        sentence = (
            f"two workers sent requests on {self.name} at once, so one may get the answer for the"
            " other; the trial then shut the connection down"
        )
        return Finding(Verdict.FAILS_WITHOUT_FAULT, sentence, self.cause)


register(SharedConnection)


class MissingObjectJudge(Judge):
    """The rules for a server that answers that its objects do not exist."""

    def __init__(self, outcome: TrialFacts, reference: Reference, contract: Contract) -> None:
        super().__init__(outcome, reference, replace(contract, may_skip=True))

    @classmethod
    def is_for(cls, outcome: TrialFacts) -> bool:
        """Whether no other fault fired than such answers."""
        fired = [each.fault for each in outcome.faults if each.fired]
        return bool(fired) and all(
            isinstance(each, HttpError) and each.status in _MISSING for each in fired
        )

    def judge(self) -> Finding:
        """The usual verdict. Its sentence does not say that an error names its cause."""
        finding, raised = super().judge(), self.outcome.exception
        if finding.verdict is not Verdict.FAILED_CLEANLY or raised is None or self.outcome.deaths:
            return finding
        sentence = f"{raised.type} was raised before the deadline; nothing leaked"
        return replace(finding, sentence=sentence)

    def find_corruption(self) -> Finding | None:
        """The same, if a sample is not one of the reference."""
        is_wrong = any(has_unknown_sample(each, self.expected) for each in self.outcome.epochs)
        return super().find_corruption() if is_wrong else None

    def _find_failed_recovery(self) -> Finding | None:
        recovery = self.outcome.recovery
        is_wrong = recovery is not None and has_unknown_sample(recovery, self.expected)
        return super()._find_failed_recovery() if is_wrong else None

    def find_unclear_error(self) -> Finding | None:
        """None, unless the author promises that errors name the file."""
        return super().find_unclear_error() if self.contract.names_file else None

    def _describe_survival(self) -> str:
        return _ANSWERED if self._has_mismatch else super()._describe_survival()


def find_cause(outcome: TrialFacts, verdict: Verdict, _: TrialFacts) -> Cause | None:
    """The cause, if a connection shows it."""
    if verdict is Verdict.HUNG:
        waits = any(each.counts_of(UNLIMITED_WAITS) for each in outcome.workers)
        is_sent = not (start_cause(outcome) or sending_cause(outcome))
        return NO_TIMEOUT if waits and is_sent else None
    return _sharing_cause(outcome, verdict)


def _sharing_cause(outcome: TrialFacts, verdict: Verdict) -> Cause | None:
    """The cause, if no fault fired and no worker died, but workers shared a connection."""
    connections = outcome.of(SharedConnection)
    is_other = outcome.fired or outcome.deaths or is_not_forked(outcome)
    if not connections or is_other or verdict not in _OF_CONNECTION:
        return None
    return connections[0].cause


def find_wait_without_timeout(outcome: TrialFacts, _: Reference) -> Finding | None:
    """A wait that only the loader's timeout ended, because the client has none."""
    waits = sorted({path for each in outcome.workers for path in each.counts_of(UNLIMITED_WAITS)})
    if not waits or not loader_timed_out(outcome):
        return None
    sentence = (
        f"a worker waited for a response from {waits[0]} without a timeout of its own; only the"
        " loader's timeout, which this check sets, ended the wait"
    )
    return Finding(Verdict.HUNG, sentence)
