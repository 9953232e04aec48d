"""What an audit by plain code or strace says of each failure: true, arguable or false, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """The cause of some checks' failure."""

    checks: str
    kind: str
    cause: str

    @property
    def shown(self) -> str:
        """As the page has it."""
        return f"{self.kind}, {self.cause}" if self.kind != "false" else f"**false**, {self.cause}"


def _true(checks: str, cause: str) -> Found:
    return Found(checks, "true", cause)


def _arguable(checks: str, cause: str) -> Found:
    return Found(checks, "arguable", cause)


_READ_FAILS = (
    "open-error permission-denied read-error read-error-halfway read-error-transient"
    " closed-descriptor descriptor-exhaustion"
)
_SKIPS = (
    "recovers-after-read-error file-missing read-error-transient truncated-empty corrupted-file"
)
_CUT = "truncated-half truncated-empty truncated-tail"
_MAPPED_BEFORE = "the file was opened before the fork, and is truncated while open"
_IMPORTS = "the spawned worker was still importing after 30 s, on busy cores"
_BUS_ERROR = "`__init__` touches a mapped page, for which the kernel has no error but SIGBUS"
_SQLITE = "SQLite's message names neither the file nor the cause"
_ZEROS_TORCHIO = "ITK returns zeros for what is missing"
_SHORTER_SOUND = "the sound is shorter, and its length is not compared with the header"
_NUMPY_LOAD = "NumPy calls a failed read a file that is not fully written"
_RESUMES = "resumes resumes-after-death"
_LAST_IS_NEXT = "the state after the last batch is that of the next epoch, as intended"
_STAYS_AT_END = "its count stays at the end, so a restarted job has an epoch without samples"
_NOT_FOUND = "every error, and a JPEG that cannot be decoded, is reported as: Image Not Found"
_SCAN = "its scan skips images that it cannot read, with a line in the log"
_UNSORTED = "a listing is used as it is, so an index means another sample on another machine"
_TIMM = (
    _arguable(
        f"{_SKIPS} empty-before-init missing-before-init corrupted-before-init",
        "returns the next image, as timm intends, with a line in the log",
    ),
    _true(
        f"{_READ_FAILS} {_CUT} truncated-before-init read-error-before-init",
        "its message names neither cause nor file: Failed to load 10 consecutive samples",
    ),
)
_DEEPCHEM = (
    _true("file-missing missing-before-init", "ones in place of the weights of a missing file"),
    _true("read-error-halfway read-error-transient", _NUMPY_LOAD),
    _true(
        "truncated-before-init read-error-before-init",
        "a metadata file that cannot be read is reported as: No Metadata found",
    ),
)
_SCIPY_SOUNDS = (
    _true(
        "truncated-half truncated-tail recovers-after-truncation truncated-before-init",
        _SHORTER_SOUND,
    ),
    _true("truncated-empty", "SciPy's message: File format b'' not understood"),
    _true("read-error-halfway", "SciPy ignores the EIO, and the empty sound fails elsewhere"),
)

AUDIT: dict[str, tuple[Found, ...]] = {
    "timm_image_dataset": (
        _arguable(_SKIPS, "returns the next image, as timm intends, with a line in the log"),
        _true(f"{_READ_FAILS} {_CUT}", "an error that does not name its cause"),
    ),
    "timm_create_loader": (
        _arguable(_SKIPS, "returns the next image, as timm intends, with a line in the log"),
        _true(f"{_READ_FAILS} {_CUT}", "an error that does not name its cause"),
    ),
    "torchio_subjects": (
        _true("truncated-half truncated-tail read-error-halfway", _ZEROS_TORCHIO),
    ),
    "torchio_loader": (_true("truncated-half truncated-tail read-error-halfway", _ZEROS_TORCHIO),),
    "torchio_random": (_true("truncated-half truncated-tail read-error-halfway", _ZEROS_TORCHIO),),
    "wds_plain": (
        _true("truncated-tail", "a tar archive that ends after a member looks complete"),
    ),
    "wds_pipeline": (
        _true("truncated-tail", "a tar archive that ends after a member looks complete"),
    ),
    "wds_continue": (
        _true(
            "read-error-halfway read-error-transient",
            "half a sample is delivered, and a KeyError raised",
        ),
        _true(
            "open-error permission-denied read-error closed-descriptor descriptor-exhaustion",
            "an error that blames the number of shards",
        ),
        Found(
            "recovers-after-read-error file-missing", "false", "may_skip counts reads, not shards"
        ),
    ),
    "yolo_train": (
        _true(f"{_READ_FAILS} {_CUT} read-error-before-init", _NOT_FOUND),
        _true("truncated-before-init empty-before-init missing-before-init", _SCAN),
    ),
    "yolo_val": (
        _true(
            "read-error-halfway read-error-transient",
            "np.fromfile drops the EIO of the last read: the end of the JPEG is leftover memory",
        ),
        _true(f"{_READ_FAILS} {_CUT} read-error-before-init", _NOT_FOUND),
        _true("truncated-before-init empty-before-init missing-before-init", _SCAN),
    ),
    "yolo_cache": (
        _true("descriptor-exhaustion", _NOT_FOUND),
        _true(
            "truncated-before-init empty-before-init missing-before-init read-error-before-init",
            _SCAN,
        ),
    ),
    "timm_multi_epochs": _TIMM,
    "timm_multi_epochs_plain": _TIMM,
    "timm_mixup": _TIMM,
    "raft_like": (
        _true("two-epochs", "each worker seeds its generators by its number, in each epoch"),
        _true(
            "read-error read-error-halfway read-error-before-init",
            "np.fromfile ignores the EIO, and the error blames the magic number",
        ),
        _true(
            "truncated-half truncated-tail recovers-after-truncation truncated-before-init",
            "np.resize repeats the content of a short file until it is long enough",
        ),
    ),
    "stable_audio_like": (
        _true(
            "recovers-after-read-error file-missing read-error-transient truncated-empty"
            " empty-before-init missing-before-init",
            "another file, at random, in place of one that cannot be read",
        ),
        _true(
            "open-error permission-denied read-error read-error-halfway closed-descriptor"
            " descriptor-exhaustion read-error-before-init",
            "where no file can be read it tries others until the stack is full: RecursionError",
        ),
        _true(
            "truncated-half truncated-tail truncated-before-init",
            "soundfile gives what is left of a sound, and zeros fill it up",
        ),
    ),
    "deepchem_torch": _DEEPCHEM,
    "deepchem_batches": (
        _true(
            "workers-agree",
            "each worker repeats its last shard, up to the length of the whole dataset",
        ),
        *_DEEPCHEM,
    ),
    "clip_stage": (
        _true("pickles", "a lambda of `get_wds_dataset`"),
        _true(
            f"{_READ_FAILS} {_SKIPS} {_CUT} truncated-before-init empty-before-init"
            " missing-before-init corrupted-before-init read-error-before-init",
            "`log_and_continue` skips samples, with a line in the log",
        ),
    ),
    "torchio_queue": (
        _true("pickles", "the constructor stores the iterator of a `DataLoader`"),
        _true(
            "truncated-half truncated-tail truncated-before-init read-error-halfway"
            " recovers-after-read-error read-error-transient",
            _ZEROS_TORCHIO,
        ),
    ),
    "scdataset_blocks": (
        _true(
            "two-epochs", "only the workers' copies count epochs, so each epoch has the same order"
        ),
    ),
    "olmo_stream": (
        _true(
            f"{_CUT} truncated-before-init empty-before-init",
            "the length of a read is not checked, and the collate function pads a short sample",
        ),
    ),
    "litdata_loader": (_arguable("resumes", _LAST_IS_NEXT),),
    "h5torch_rows": (
        _true("pickles", "an open HDF5 file on the dataset"),
        _arguable(f"{_CUT} recovers-after-truncation", _MAPPED_BEFORE),
    ),
    "miditok_files": (
        _true(
            f"{_SKIPS} read-error-halfway empty-before-init missing-before-init",
            "a file that cannot be read is None, and is left out of the batch",
        ),
        _true(
            f"{_READ_FAILS} {_CUT} truncated-before-init read-error-before-init",
            "a batch of which no file can be read is an IndexError of `DataCollator`",
        ),
    ),
    "wids_shards": (
        _true(
            "truncated-half truncated-tail recovers-after-truncation truncated-before-init",
            "no word of the cut archive: samples lack members, or an index is out of range",
        ),
    ),
    "olmo_tokens": (
        _true(_CUT, "a read is not compared with what a sample needs: it is shorter, or empty"),
        _true(
            "truncated-before-init empty-before-init",
            "the length follows from the sizes of the files that are there",
        ),
    ),
    "energon_loader": (
        _true("pickles", "a lambda of its factory"),
        _true(
            f"{_READ_FAILS} {_SKIPS} {_CUT} recovers-after-truncation hung-read worker-killed-first"
            " worker-killed-middle worker-killed-last worker-killed-reading worker-killed-sending",
            "after an error the loader keeps a generator that has ended: each later epoch is empty",
        ),
        _true(
            "truncated-before-init empty-before-init",
            "its words for a cut index name neither file nor cause: No valid files found in sample",
        ),
        _true(
            "missing-before-init",
            "its words where .info.json is missing: Filesystem datasets can only be auxiliary",
        ),
    ),
    "monai_thread_loader": (
        _true(
            f"{_READ_FAILS} {_SKIPS} {_CUT} hung-read truncated-before-init empty-before-init"
            " missing-before-init corrupted-before-init read-error-before-init",
            "a thread iterates, and where it meets an error the epoch ends in silence",
        ),
        _true(
            "worker-killed-sending",
            "the thread waits for the rest of a batch, and `stop` waits for the thread",
        ),
    ),
    "torchgeo_rasters": (
        _true(
            "empty-before-init missing-before-init",
            "a raster that is not there, or cannot be read, is left out of the index",
        ),
        _true("read-error-before-init", "its words where it can read no raster: Dataset not found"),
    ),
    "supervision_yolo": (
        _true("listing-order", _UNSORTED),
        _true(
            "truncated-half truncated-tail truncated-before-init",
            "cv2.imread returns an image whose missing half is gray",
        ),
        _arguable("empty-before-init", "an empty label file is an image without boxes"),
        _true("missing-before-init", "a missing image is skipped"),
    ),
    "datatrove_folder": (
        _true("read-before-fork", "forked workers inherit an open file, and share its offset"),
        _true(
            f"{_CUT} recovers-after-truncation",
            "the length of a read is not checked: the sample is shorter, or empty",
        ),
        _true(
            "truncated-before-init empty-before-init missing-before-init",
            "the length is computed from the sizes of the existing files",
        ),
    ),
    "basicsr_paired": (
        _true("listing-order", _UNSORTED),
        _arguable(
            "pickles",
            "a spawned worker imports basicsr without the module of torchvision that the script"
            " puts in place",
        ),
        _true(
            "truncated-half truncated-tail stray-entries",
            "cv2.imdecode returns None, and no code checks it",
        ),
    ),
    "zarr_rows": (_true("file-missing", "a missing chunk is the fill value, as zarr intends"),),
    "pyg_memory": (_arguable("pickles", "the class of this row is created in a function"),),
    "pyg_files": (_arguable("pickles", "the class of this row is created in a function"),),
    "monai_persistent": (_arguable("pickles", _IMPORTS),),
    "clip_wds": (
        _arguable(
            "workers-agree", "a WebLoader is itself a loader, not a dataset for another loader"
        ),
    ),
    "wds_loader": (
        _arguable(
            "workers-agree", "a WebLoader is itself a loader, not a dataset for another loader"
        ),
    ),
    "mosaic": (
        _arguable("pickles", _IMPORTS),
        _true("short-read", "reads without a buffer and without a loop"),
        _true("read-before-fork", "a lock of filelock is inherited across the fork"),
        _true(
            "worker-killed-first worker-killed-middle worker-killed-last worker-killed-reading"
            " worker-killed-sending",
            "a barrier waits for the dead worker",
        ),
    ),
    "hf_stream_json": (
        _true(
            "truncated-empty truncated-tail", "JSON lines do not record how many there should be"
        ),
    ),
    "gzip_lines": (_true("truncated-empty", "gzip treats an empty file as an empty archive"),),
    "chain_dataset": (_true("truncated-empty", "gzip treats an empty file as an empty archive"),),
    "hf_disk": (_arguable("read-error-before-init", _BUS_ERROR),),
    "hf_torch": (
        _arguable("truncated-tail", _MAPPED_BEFORE),
        _arguable("read-error-before-init", _BUS_ERROR),
    ),
    "hf_parquet": (_arguable("truncated-tail", _MAPPED_BEFORE),),
    "tensordict_rows": (
        _true(_CUT, "torch.from_file pads the short file with zeros, on the disk as well"),
    ),
    "pyg_disk": (
        _true("pickles", "an SQLite connection on the dataset"),
        _true(
            "recovers-after-read-error",
            "a temporary table stays after an error, and blocks later queries",
        ),
        _true("read-error read-error-halfway read-error-transient", _SQLITE),
        _arguable("truncated-empty", _MAPPED_BEFORE),
        _arguable("closed-descriptor", _SQLITE),
        _true("empty-before-init", "0 of 24 samples: SQLite treats an empty file as a new one"),
        _true("missing-before-init", _SQLITE),
    ),
    "sqlite_rows": (
        _true(f"{_READ_FAILS} file-missing truncated-empty recovers-after-read-error", _SQLITE),
    ),
    "shelf": (
        _true(
            f"{_READ_FAILS} recovers-after-read-error file-missing",
            "dbm.error cannot be pickled, so it never reaches the loop",
        ),
        _true("truncated-empty truncated-tail", "a KeyError for a key that the file has lost"),
    ),
    "nanogpt": (
        _true(
            "truncated-half truncated-tail",
            "a shorter sample, which only the collate function notices",
        ),
    ),
    "vits_cold": _SCIPY_SOUNDS,
    "scipy_folder": (
        _true(
            "truncated-half truncated-tail read-error-halfway read-error-transient", _SHORTER_SOUND
        ),
    ),
    "soundfile_folder": (_true("truncated-half truncated-tail", _SHORTER_SOUND),),
    "lmdb_kept": (
        _true("pickles", "an LMDB environment on the dataset"),
        _arguable(_CUT, _MAPPED_BEFORE),
        _true(
            "truncated-before-init", "LMDB maps the file without checking its size, and gets SIGBUS"
        ),
    ),
    "tv_lsun": (
        _true("pickles", "an LMDB environment on the dataset"),
        _arguable(_CUT, _MAPPED_BEFORE),
    ),
    "h5_kept": (
        _true("pickles", "an open HDF5 file on the dataset"),
        _true("recovers-after-read-error", "after one EIO, the same handle returns zeros"),
        _arguable(f"{_CUT} recovers-after-truncation", _MAPPED_BEFORE),
    ),
    "deep_text_like": (
        _true("pickles", "an LMDB environment on the dataset"),
        _true("corrupted-file", "a black image instead of a damaged one"),
        _arguable(_CUT, _MAPPED_BEFORE),
    ),
    "deep_text_files": (
        _true(f"{_READ_FAILS} {_SKIPS} {_CUT}", "a black image instead of an error"),
    ),
    "realesrgan_like": (
        _true(_SKIPS, "another image instead of an error"),
        _true(f"{_READ_FAILS} {_CUT}", "a wrong index or an unset variable instead of the error"),
    ),
    "mmps_like": (
        _true(_SKIPS, "another image instead of an error"),
        _true(
            f"{_READ_FAILS} {_CUT}", "hundreds of chained errors, the last of which is unrelated"
        ),
    ),
    "neighbour": (_arguable(_SKIPS, "returns the next image, as the author intends"),),
    "jepa_like": (
        _true(_SKIPS, "another image instead of an error"),
        _true(f"{_READ_FAILS} {_CUT}", "an endless loop"),
    ),
    "deeplake_torch": (
        _true(
            f"recovers-after-read-error read-error-halfway read-error-transient"
            f" file-missing {_CUT}",
            "zeros, or leftover memory, instead of what cannot be read",
        ),
        _true(
            "open-error permission-denied read-error closed-descriptor descriptor-exhaustion",
            "SIGFPE if nothing can be read",
        ),
    ),
    "array_record_source": (
        _true("workers-agree", "forked workers do not inherit its threads, and die"),
    ),
    "grain_files": (_true("read-error-halfway", _NUMPY_LOAD),),
    "tfrecord_plain": (
        _true("workers-agree", "without an index, each worker returns the whole file"),
        _true("pickles", "a lambda on the dataset"),
        _true("truncated-half truncated-empty", "what is missing at the end is not noticed"),
        _arguable("truncated-tail", "its message is: Failed to read the record"),
    ),
    "xbatcher_h5": (_arguable(_CUT, _MAPPED_BEFORE),),
    "tonic_cached": (
        _true("read-error-halfway", _NUMPY_LOAD),
        _true("disk-full", "HDF5 kills the worker with SIGSEGV when it closes the file"),
    ),
    "lhotse_iterable": (
        _true(
            "read-before-fork",
            "a sampler continues where an epoch was left, so the next one is short",
        ),
        _true("truncated-half truncated-tail", _SHORTER_SOUND),
        _true("truncated-empty", "gzip treats an empty file as an empty archive"),
    ),
    "zip_folder": (
        _true("workers-agree", "`__init__` opens the archive, and workers share its offset"),
    ),
    "climax_three": (_true("workers-agree", "files that workers do not share evenly are dropped"),),
    "fasta_kept": (
        _true("workers-agree", "`__init__` opens the file, and workers share its offset"),
        _true("pickles", "an open FASTA file on the dataset"),
        _arguable(_CUT, _MAPPED_BEFORE),
        _true(
            "truncated-before-init empty-before-init",
            "shorter or empty DNA, if an index lies next to the file",
        ),
    ),
    "nanogpt_batches": (
        _true("truncated-before-init", "random positions are drawn from the shorter file"),
    ),
    "memmap_blocks": (
        _true(
            "truncated-before-init", "16 of 32 samples: the length is computed from the file size"
        ),
    ),
    "vilt_like": (
        _true("missing-before-init", "16 of 32 samples: a missing table is skipped"),
        _arguable("read-error-before-init", _BUS_ERROR),
    ),
    "lerobot_like": (_arguable("read-error-before-init", _BUS_ERROR),),
    "safetensors_kept": (
        _true("pickles", "an open safetensors file on the dataset"),
        _arguable("read-error-before-init", _BUS_ERROR),
    ),
    "torch_mapped": (
        _true("empty-before-init", "torch blames the way in which the file was saved"),
    ),
    "fromfile_rows": (
        _true(
            "truncated-before-init empty-before-init", "the length is computed from the file size"
        ),
        _true("read-error-before-init", "np.fromfile ignores the EIO; rows of leftover memory"),
    ),
    "json_parsed": (
        _true(
            "truncated-before-init empty-before-init",
            "JSON lines do not record how many there should be",
        ),
    ),
    "hf_dict": (_arguable("read-error-before-init", _BUS_ERROR),),
    "hf_images": (_arguable("read-error-before-init", _BUS_ERROR),),
    "tensordict_memmap": (
        _true(
            "truncated-before-init empty-before-init",
            "torch.from_file pads the short file with zeros, on the disk as well",
        ),
        _true("missing-before-init", "samples without the key whose file is missing"),
    ),
    "sqlite_counted": (
        _true(
            f"{_READ_FAILS} file-missing truncated-empty empty-before-init missing-before-init",
            _SQLITE,
        ),
    ),
    "pandas_csv": (
        _true(
            "truncated-before-init",
            "215 of 400 rows: a text file does not record its number of lines",
        ),
    ),
    "tv_kitti": (_true("listing-order", _UNSORTED),),
    "tv_cityscapes": (_true("listing-order", _UNSORTED),),
    "tv_omniglot": (
        _true("listing-order", "its labels are the places of the characters in a listing"),
    ),
    "monai_mednist": (
        _true(
            "listing-order",
            "the split is drawn from a listing: images for validation are for training elsewhere",
        ),
    ),
    "pyg_modelnet": (
        _true("listing-order", "`process` stores the meshes in the order in which `glob` lists"),
    ),
    "unet_like": (
        _true("listing-order", "its random split is drawn from a listing that is not sorted"),
    ),
    "sklearn_files": (_true("stray-entries", "a hidden file and an interrupted copy are samples"),),
    "ranks_wds_plain": (_true("ranks-agree", "it rejects several ranks without a node splitter"),),
    "ranks_wds_pipeline": (
        _true("ranks-agree", "split by worker only: each rank has all samples"),
    ),
    "ranks_wds_uneven": (
        _true("ranks-agree", "three archives are too few for two ranks of two workers"),
    ),
    "ranks_hf_plain": (_true("ranks-agree", "not split: each rank has all samples"),),
    "ranks_mosaic": (_true("rank-worker-killed", "a barrier waits for the dead worker"),),
    "ranks_mosaic_loader": (_true("rank-worker-killed", "a barrier waits for the dead worker"),),
    "ranks_lightning_module": (
        _arguable("ranks-agree", "the trainer adds the sampler, and was not passed"),
    ),
    "ranks_accelerate_seedable": (
        _true(
            "ranks-agree",
            "each rank shuffles by its own seed unless `set_seed` was called, even under torchrun",
        ),
    ),
    "ranks_stateful_plain": (_true("ranks-agree", "no sampler: each rank has all samples"),),
    "resume_stateful_torch_sampler": (
        _true(_RESUMES, "torch's `RandomSampler` has no state, so the rest has another order"),
    ),
    "resume_stateful_stream": (
        _true("resumes", "it counts from the last restart, and refuses the state of a second one"),
    ),
    "resume_hf_shuffled": (
        _true(_RESUMES, "each worker loads its state before it selects its part of the files"),
    ),
    "resume_hf_shuffled_one": (
        _true(_RESUMES, "the samples in the buffer are lost, as the documentation says"),
    ),
    "resume_litdata_loader": (_arguable("resumes", _LAST_IS_NEXT),),
    "resume_litdata_shuffled": (_arguable("resumes", _LAST_IS_NEXT),),
    "resume_mosaic_loader": (_true("resumes", _STAYS_AT_END),),
    "resume_mosaic_shuffled": (_true("resumes", _STAYS_AT_END),),
    "resume_accelerate": (_arguable("resumes", _LAST_IS_NEXT),),
    "resume_accelerate_shuffled": (
        _true(_RESUMES, "it draws by torch's `RandomSampler`, which has no state"),
    ),
    "resume_accelerate_seedable": (_arguable("resumes", _LAST_IS_NEXT),),
}
