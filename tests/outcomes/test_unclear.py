"""What is said of an error that hides its cause, and what it should say instead."""

from __future__ import annotations

import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch.utils.data import Dataset

from pytest_dataloader_faults import Contract, check_dataset
from pytest_dataloader_faults.faults import (
    KINDS,
    CorruptedFile,
    Fault,
    ReadError,
    ShortRead,
    TruncatedFile,
)
from pytest_dataloader_faults.outcomes import Pass
from pytest_dataloader_faults.outcomes.judge.errors import unclear
from support.facts import fired, ordinary, raised
from support.rows import rows


def _sentence(kind: Fault, path: str | None = "/data/a.rec", **options: Any) -> str:
    error = replace(raised("ValueError", "bad sample"), **options)
    facts = fired(kind, path=path)
    outcome = ordinary(Pass(exception=error), facts)
    found = unclear(outcome, Contract(detects_corruption=True))
    assert found is not None
    return found[1]


@rows(
    ("fault", "words"),
    [
        (TruncatedFile(), "the content of a.rec is bad (it ended early)"),
        (CorruptedFile(), "the content of a.rec is bad (bytes of it are damaged)"),
        (ShortRead(), "a read of a.rec gave fewer bytes than it was asked for"),
        (ReadError(), "its cause is [Errno 5] Input/output error"),
    ],
)
def test_what_happened_is_told_in_words_of_files(fault, words):
    """The name of a fault's class means nothing to who reads the message."""
    assert _sentence(fault).startswith(f"ValueError does not say that {words}. ")


def test_of_bad_content_there_is_no_error_to_raise_from():
    """The advice is to say what is wrong."""
    assert "Raise it from the original exception" in _sentence(ReadError())
    assert "Raise it from" not in _sentence(TruncatedFile())
    assert "Say what is wrong in its message, or put the file's path there" in _sentence(
        TruncatedFile()
    )


def test_one_of_several_files_is_not_named():
    """It is not known which of them the error is about."""
    outcome = ordinary(
        Pass(exception=raised("ValueError", "bad")),
        (*fired(TruncatedFile()), *fired(TruncatedFile(), path="/data/b.rec")),
    )
    found = unclear(outcome, Contract())

    assert found is not None
    assert "the content of a file is bad (it ended early)" in found[1]


@rows("name", KINDS)
def test_no_class_of_a_fault_is_given_as_the_cause(name):
    """Each kind has words, or an errno."""
    required = {"WorkerKilled": {"at": 1}}.get(name, {})

    assert name not in _sentence(KINDS[name](**required), path=None)


class UnprintableError(RuntimeError):
    """Takes a number, and gets a text from torch."""

    def __init__(self, number: Any) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"error {self.number:d}"


class _Sounds(Dataset[Any]):
    """Sounds, as torchaudio and others read them."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.wav"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(soundfile.read(self.paths[index])[0])


class _RaisesUnprintable(_Sounds):
    def __getitem__(self, index: int) -> Any:
        try:
            return torch.tensor(list(self.paths[index].read_bytes()))
        except OSError as error:
            raise UnprintableError(error.errno) from None


class _SaysWhich(_Sounds):
    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except soundfile.LibsndfileError as error:
            raise OSError(str(error)) from error


@pytest.fixture(name="sounds")
def _sounds(tmp_path):
    for number in range(4):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(range(number, number + 200)))
    return tmp_path


@pytest.mark.parametrize("kind", [_Sounds, _RaisesUnprintable])
def test_an_error_that_torch_cannot_rebuild_is_told_so(kind, sounds):
    """The path was in its message; nobody is sent to put it there."""
    (result,) = check_dataset(lambda: kind(sounds), only="open-error", on_fail=None)
    sentence = result.explanation.partition("\n")[0]

    assert result.verdict == "failed_unclearly"
    assert result.outcome.exception.unprintable in ("TypeError", "ValueError")
    assert "the exception's class cannot be rebuilt from its message" in sentence
    assert f"its __str__ raises {result.outcome.exception.unprintable}" in sentence
    assert "path in its message" not in sentence
    assert "raise OSError(str(error)) from error" in sentence


def test_the_advice_for_such_an_error_helps(sounds):
    """What is raised instead names the file."""
    (result,) = check_dataset(lambda: _SaysWhich(sounds), only="open-error", on_fail=None)

    assert (result.verdict, result.outcome.exception.unprintable) == ("failed_cleanly", "")
