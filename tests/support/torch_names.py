"""Every private name of torch that the package uses, and what for."""

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
