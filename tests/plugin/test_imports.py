"""What loading the plugin imports: nothing that a suite without DataLoaders has to pay for."""

import json

import pytest

NAME = "pytest_dataloader_faults"
HEAVY = {"torch", "hypothesis", "pyfakefs", "psutil", "numpy", "jinja2"}
NOT_IN_PYTEST = {"ctypes", "multiprocessing", "pytest_dataloader_faults.battery"}
AT_START = """
    _arguments _settings exceptions plugin plugin._failures plugin._items plugin._options
    plugin._report
""".split()
"""All that a run imports of this package where no test and no header needs more."""
FOR_THE_HEADER = [
    "_engine",
    "_engine.system.processes",
    "_engine.system.proc",
    "_engine.system",
]
"""The process that looks at the machine imports more, and is thrown away."""


AT_THE_END = """
import json
import sys

def pytest_unconfigure():
    print("\\n@" + json.dumps(sorted(sys.modules)), file=sys.__stdout__)
"""


def _imported(result) -> set[str]:
    (line,) = [line for line in result.outlines if line.startswith("@")]
    return set(json.loads(line[1:]))


@pytest.mark.parametrize("arguments", [("-v",), ("-q",)])
def test_a_run_of_plain_tests_is_light(fresh_suite, arguments):
    fresh_suite.pytester.makeconftest(AT_THE_END)
    result = fresh_suite.run("def test_plain(tmp_path, capsys): pass", *arguments)
    assert result.ret == 0
    imported = _imported(result)
    modules = {name.removeprefix(f"{NAME}.") for name in imported if name.startswith(NAME)}
    has_header = arguments == ("-v",)
    assert modules == {NAME, *AT_START, *(FOR_THE_HEADER if has_header else ())}
    assert not imported & (HEAVY | NOT_IN_PYTEST)


CHECK = """
import sys

import pytest

@pytest.fixture(autouse=True, scope="session")
def collected():
    return set(sys.modules)

@pytest.mark.dataloader_faults(only="workers-agree")
def test_x(fault_check, tmp_path, collected):
    assert "pytest_dataloader_faults.battery.checking" in collected
    assert not collected & {HEAVY}
    from support.datasets import Records

    (tmp_path / "0.rec").write_bytes(bytes(64))
    fault_check(lambda: Records(tmp_path))
"""


def test_a_check_imports_no_library_that_it_does_not_need(fresh_suite, engine):
    """Collecting it imports the battery, and still not torch."""
    fresh_suite.pytester.makeconftest(AT_THE_END)
    source = CHECK.replace("{HEAVY}", repr(HEAVY))
    result = fresh_suite.run(source, "--dataloader-faults-report=r.json")
    assert result.ret == 0
    assert not _imported(result) & {"hypothesis", "pyfakefs", "jinja2"}
