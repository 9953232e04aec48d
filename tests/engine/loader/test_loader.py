"""What loaders and workers take along, and the private names of torch that the package uses.

A name counts as torch's if torch's loader has it and the package uses it of what is not its own.
"""

import ast
import contextlib
import errno
import importlib
import inspect
import os
import re
import signal
from pathlib import Path

import pytest
import torch.utils.data
from packaging.version import Version
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import pytest_dataloader_faults
from pytest_dataloader_faults import inject
from pytest_dataloader_faults._engine.plan import FaultPlan
from pytest_dataloader_faults._engine.protocol import Channel, Door, Hello, WorkerConfig
from pytest_dataloader_faults._engine.worker.arm import _hand_over
from pytest_dataloader_faults.faults import ReadError
from support.children import in_its_own_process
from support.datasets import COUNT, Records, write_records
from support.epochs import alone
from support.rows import rows
from support.tries import WAYS, Tries

_LOADER, _UTILS = "torch.utils.data.dataloader", "torch.utils.data._utils"
USED_OF_TORCH = {
    f"{_LOADER}.DataLoader": {
        "_auto_collation": "whether it makes batches of samples itself",
        "_get_iterator": "makes the iterator",
        "_index_sampler": "what the iterator draws from",
        "_iterator": "the iterator that persistent workers belong to",
    },
    f"{_LOADER}": {"_DatasetKind": "makes the fetcher that reads the samples of a reference"},
    f"{_LOADER}._BaseDataLoaderIter": {
        "_auto_collation": "the loader's",
        "_dataset": "the loader's",
        "_next_data": "gives a batch, of what it drew for it",
        "_next_index": "draws from the sampler",
        "_reset": "begins an epoch",
    },
    f"{_LOADER}._MultiProcessingDataLoaderIter": {
        "_data_queue": "where batches come from",
        "_get_data": "waits for a batch, and gives its number",
        "_in_order": "whether batches may overtake each other (2.6)",
        "_process_data": "gets each batch, with the id of its worker (2.7)",
        "_rcvd_idx": "the number of the batch that it waits for",
        "_send_idx": "the number of the batch that it asks for next",
        "_shutdown": "whether its workers were ended",
        "_shutdown_workers": "ends the workers",
        "_task_info": "the worker of each batch that was asked for",
        "_try_get_data": "waits for a batch for 5 s",
        "_try_put_index": "asks a worker for a batch",
        "_workers": "its processes",
        "_workers_status": "whether batches are expected from each of them",
    },
    "torch._C": {"_set_worker_signal_handlers": "torch's handlers of SIGBUS and SIGSEGV"},
    "torch.utils.data.RandomSampler": {"_num_samples": "how many samples it was told to draw"},
    f"{_UTILS}": {"python_exit_status": "whether the interpreter ends"},
    f"{_UTILS}.fetch": {
        "_IterableDatasetFetcher": "asks a stream for samples, in the worker",
        "_MapDatasetFetcher": "asks any other dataset for them",
    },
    f"{_UTILS}.signal_handling": {
        "_SIGCHLD_handler_set": "whether torch's handler is there",
        "_error_if_any_worker_fails": "raises for a worker that has died",
    },
    f"{_UTILS}.worker": {
        "ManagerWatchdog": "tells a worker that its parent is dead",
        "_worker_info": "what get_worker_info() returns",
    },
    "torch._utils": {"ExceptionWrapper": "what comes from a worker in place of a batch"},
    "torch.nested._internal": {"nested_tensor": "imported with the first tensor that is shared"},
    "torch.profiler": {"_cupti_monitor": "imported with the first batch"},
}
"""What it is for, by its owner and its name. All of it is in the lowest torch that is allowed, and
came with the version in brackets, or long before; or it is among the newer ones."""
NEWER = {"_cupti_monitor": "2.13"}
"""Names that the package can do without, and the version that they came with."""


pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"  # torchdata 0.11 with torch 2.13.
)

PATIENCE = 20


@in_its_own_process()
def test_a_supervisor_that_is_gone_when_the_listener_is_sent():
    """The next open(2) has nobody to wait for: the kernel refuses it, with ENOSYS."""
    signal.alarm(PATIENCE)  # A process that waits for itself is ended by nothing else.
    ours, theirs = Channel.pair()
    theirs.close()
    config = WorkerConfig(Door(ours), os.getpid(), FaultPlan((ReadError("*"),)))
    hello = Hello(0, 1, os.getpid())
    with pytest.raises(BrokenPipeError):
        _hand_over(config, hello, [])
    with pytest.raises(OSError, match="not implemented") as refused:
        os.open(os.devnull, os.O_RDONLY)
    assert errno.ENOSYS == refused.value.errno


FAULT = ReadError("*/03.rec", times=1)


def _until_error(iterator):
    with pytest.raises(OSError, match="Input/output error"):
        list(iterator)


def test_an_iterator_continues_after_an_error(records):
    with inject(FAULT):
        iterator = iter(DataLoader(Records(records), num_workers=1))
        _until_error(iterator)
    assert len(list(iterator)) == COUNT - 4


FAILED = "OSError: [Errno 5] Input/output error"


def _paths(folder):
    return [str(path) for path in sorted(folder.iterdir())]


def _contents(folder):
    return [Path(path).read_bytes() for path in _paths(folder)]


def _loader(folder, **options):
    return alone(Tries(_paths(folder), WAYS["read"]), **options)


def _contents_of(batches):
    return [each.gave for each in batches]


def _identity(sample):
    return sample


def _stateful(folder):
    dataset = Tries(_paths(folder), WAYS["read"])
    return StatefulDataLoader(dataset, batch_size=None, collate_fn=_identity, num_workers=2)


@pytest.fixture(name="other_records")
def _other_records(tmp_path):
    return write_records(tmp_path / "others")


def test_two_loaders_in_turns(records, other_records):
    faults = [ReadError("*/records/*", nth=2, times=1), ReadError("*/others/*", nth=3, times=1)]
    with inject(*faults) as injection:
        pairs = list(zip(_loader(records), _loader(other_records), strict=True))
    first_epoch, second_epoch = (_contents_of(each) for each in zip(*pairs, strict=True))
    assert (1, 2) == (first_epoch.index(FAILED), second_epoch.index(FAILED))
    assert [COUNT - 1] * 2 == [
        sum(a == b for a, b in zip(gave, _contents(folder), strict=True))
        for gave, folder in ((first_epoch, records), (second_epoch, other_records))
    ]
    assert [1, 1] == [each.fired for each in injection.faults]


def test_the_state_of_a_stateful_loader(records):
    with inject(ReadError("*/02.rec")):
        loader = _stateful(records)
        iterator = iter(loader)
        first_batches = _contents_of([next(iterator) for _ in range(6)])
        state = loader.state_dict()
        iterator._shutdown_workers()
    fresh = _stateful(records)
    fresh.load_state_dict(state)
    assert [2] == [number for number, each in enumerate(first_batches) if each == FAILED]
    assert _contents(records)[6:] == _contents_of(fresh)


PACKAGE = Path(pytest_dataloader_faults.__file__).parent
NAMES = [(owner, name) for owner, names in USED_OF_TORCH.items() for name in names]
OTHERS = {"_C", "_fields"}
"""torch's extension module, and those of named tuples, which torch's loader has as well."""
NODES = [[*ast.walk(ast.parse(path.read_text("utf-8")))] for path in PACKAGE.rglob("*.py")]
"""Those of each module."""
_BY_NAME = ("getattr", "hasattr", "setattr")


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


def _torch_names():
    """Every private word of torch's loader."""
    folder = Path(torch.utils.data.__file__).parent
    sources = [*folder.glob("*.py"), *folder.glob("_utils/*.py")]
    words = (re.findall(r"\b_\w+", path.read_text("utf-8")) for path in sources)
    return {each for matches in words for each in matches if _is_private(each)}


def _imported_names(node):
    """The private parts of what is imported from torch, such as ``_utils``, also by its name."""
    if isinstance(node, ast.Constant) and re.fullmatch(r"torch(\.\w+)+", str(node.value)):
        return {each for each in node.value.split(".") if _is_private(each)}
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch"):
        parts = {part for each in node.names for part in each.name.split(".")}
        return {each for each in {*str(node.module).split("."), *parts} if _is_private(each)}
    return set()


def _name(node):
    return getattr(node, "id", None)


def _is_call_of_super(node):
    """Whether it is a private method of what a class is mixed into, or of its base."""
    is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_")
    return is_private and isinstance(node.value, ast.Call) and _name(node.value.func) == "super"


def _attributes(nodes):
    """What is used of objects other than an instance of the class itself; all of it in a mixin."""
    for node in nodes:
        if isinstance(node, ast.ClassDef) and any(map(_is_call_of_super, ast.walk(node))):
            yield from (each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute))
        elif isinstance(node, ast.Attribute) and _name(node.value) not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME:
            yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))


def _used_names():
    attributes = {name for nodes in NODES for name in _attributes(nodes) if _is_private(name)}
    imports = [_imported_names(node) for nodes in NODES for node in nodes]
    return (attributes & _torch_names()).union(*imports)


def _owner(path):
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            owner = getattr(owner, name)
        return owner
    raise AssertionError(path)


@rows(("owner", "name"), NAMES)
def test_torch_has_it(owner, name):
    if Version(torch.__version__) < Version(NEWER.get(name, "0")):
        return
    loaded_owner = _owner(owner)
    with contextlib.suppress(ModuleNotFoundError):  # It is no submodule.
        importlib.import_module(f"{owner}.{name}")
    assert hasattr(loaded_owner, name) or f"self.{name}" in inspect.getsource(loaded_owner)


def test_the_table_is_whole():
    names = {name for _, name in NAMES if _is_private(name)}
    owners = {each for owner in USED_OF_TORCH for each in owner.split(".")}
    used_names = _used_names()
    assert [set(), set()] == [used_names - OTHERS - names - owners, names - used_names]
