"""What tests of likely causes share."""

import pytest

from pytest_dataloader_faults._trial.process import fork_server


@pytest.fixture(name="hash_seeds")
def _hash_seeds(monkeypatch):
    """Each interpreter has its own seed. tox sets PYTHONHASHSEED, which a fork server keeps."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    monkeypatch.setattr(fork_server, "_started", [])
    yield
    for each in fork_server._started:
        each.kill()
