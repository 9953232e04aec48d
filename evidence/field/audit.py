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


_STORAGE = (
    "open-error permission-denied read-error-first read-error-later read-error-transient"
    " closed-descriptor descriptor-exhaustion"
)
_SOME = "read-error-next-epoch file-missing read-error-transient truncated-empty corrupted-file"
_CUT = "truncated-half truncated-empty truncated-tail"
_MAPPED_BEFORE = "the file is open since before the fork, and is cut under it"
_IMPORTS = "the spawned worker was still importing after 30 s, on busy cores"
_BUS_ERROR = "`__init__` touches a mapped page, for which the kernel has no error but SIGBUS"
_SQLITE = "SQLite's words name neither the file nor the cause"
_ZEROS_TORCHIO = "ITK gives zeros for what is missing"
_SHORTER_SOUND = "the sound is shorter, and its length is not compared with the header"
_NUMPY_LOAD = "NumPy calls a failed read a file that is not fully written"
_RESUMES = "resumes resumes-after-death"
_LAST_IS_NEXT = "the state after the last batch is that of the next epoch, as its author means it"
_STAYS_AT_END = "its count stays at the end, so a job that begins again has an epoch of no sample"
_SCIPY_SOUNDS = (
    _true("truncated-half truncated-tail truncated-next-epoch truncated-at-rest", _SHORTER_SOUND),
    _true("truncated-empty", "SciPy's words: File format b'' not understood"),
    _true("read-error-later", "SciPy swallows the EIO, and the empty sound fails elsewhere"),
)

AUDIT: dict[str, tuple[Found, ...]] = {
    "timm_image_dataset": (
        _arguable(_SOME, "the next picture, as timm means it, with a line in the log"),
        _true(f"{_STORAGE} {_CUT}", "an error that names no cause"),
    ),
    "timm_create_loader": (
        _arguable(_SOME, "the next picture, as timm means it, with a line in the log"),
        _true(f"{_STORAGE} {_CUT}", "an error that names no cause"),
    ),
    "torchio_subjects": (_true("truncated-half truncated-tail read-error-later", _ZEROS_TORCHIO),),
    "torchio_loader": (_true("truncated-half truncated-tail read-error-later", _ZEROS_TORCHIO),),
    "torchio_random": (_true("truncated-half truncated-tail read-error-later", _ZEROS_TORCHIO),),
    "wds_plain": (_true("truncated-tail", "a tar archive that ends after a member looks whole"),),
    "wds_pipeline": (
        _true("truncated-tail", "a tar archive that ends after a member looks whole"),
    ),
    "wds_continue": (
        _true("read-error-later read-error-transient", "half a sample comes, and a KeyError"),
        _true(
            "open-error permission-denied read-error-first closed-descriptor descriptor-exhaustion",
            "an error that blames the number of shards",
        ),
        Found("read-error-next-epoch file-missing", "false", "may_skip counts reads, not shards"),
    ),
    "basicsr_paired": (
        _arguable(
            "pickles",
            "a spawned worker imports basicsr without the module of torchvision that the script"
            " puts in place",
        ),
        _true("truncated-half truncated-tail", "cv2.imdecode gives None, and no code checks it"),
    ),
    "zarr_rows": (
        _true("file-missing", "a chunk that does not exist is the fill value, as zarr means it"),
    ),
    "pyg_memory": (_arguable("pickles", "the class of this row is made in a function"),),
    "pyg_files": (_arguable("pickles", "the class of this row is made in a function"),),
    "monai_persistent": (_arguable("pickles", _IMPORTS),),
    "clip_wds": (
        _arguable(
            "workers-agree", "a WebLoader is itself a loader, and no dataset for another one"
        ),
    ),
    "wds_loader": (
        _arguable(
            "workers-agree", "a WebLoader is itself a loader, and no dataset for another one"
        ),
    ),
    "mosaic": (
        _arguable("pickles", _IMPORTS),
        _true("short-read", "reads without a buffer and without a loop"),
        _true("used-before", "a lock of filelock is inherited across the fork"),
        _true(
            "worker-killed-first worker-killed-middle worker-killed-last worker-killed-reading"
            " worker-killed-sending",
            "a barrier waits for the dead worker",
        ),
    ),
    "hf_stream_json": (
        _true("truncated-empty truncated-tail", "JSON lines have no end that could be missing"),
    ),
    "gzip_lines": (_true("truncated-empty", "gzip takes an empty file for an empty archive"),),
    "chain_dataset": (_true("truncated-empty", "gzip takes an empty file for an empty archive"),),
    "hf_disk": (
        _arguable("truncated-tail", _MAPPED_BEFORE),
        _arguable("read-error-at-rest", _BUS_ERROR),
    ),
    "hf_torch": (
        _arguable("truncated-tail", _MAPPED_BEFORE),
        _arguable("read-error-at-rest", _BUS_ERROR),
    ),
    "hf_parquet": (_arguable("truncated-tail", _MAPPED_BEFORE),),
    "tensordict_rows": (
        _true(_CUT, "torch.from_file lengthens the short file with zeros, on the disk as well"),
    ),
    "pyg_disk": (
        _true("pickles", "an SQLite connection on the dataset"),
        _true("read-error-next-epoch", "a temporary table stays after an error, and blocks"),
        _true("read-error-first read-error-later read-error-transient", _SQLITE),
        _arguable("truncated-empty", _MAPPED_BEFORE),
        _arguable("closed-descriptor", _SQLITE),
        _true("empty-at-rest", "0 of 24 samples: SQLite takes an empty file for a new one"),
        _true("missing-at-rest", _SQLITE),
    ),
    "sqlite_rows": (
        _true(
            f"{_STORAGE} file-missing truncated-empty read-error-next-epoch",
            _SQLITE,
        ),
    ),
    "shelf": (
        _true(
            f"{_STORAGE} read-error-next-epoch file-missing",
            "dbm.error cannot be pickled, so it never reaches the loop",
        ),
        _true("truncated-empty truncated-tail", "a KeyError for a key that the file lost"),
    ),
    "nanogpt": (
        _true(
            "truncated-half truncated-tail", "a shorter sample, which only the collation notices"
        ),
    ),
    "vits_cold": _SCIPY_SOUNDS,
    "scipy_folder": (
        _true(
            "truncated-half truncated-tail read-error-later read-error-transient", _SHORTER_SOUND
        ),
    ),
    "soundfile_folder": (_true("truncated-half truncated-tail", _SHORTER_SOUND),),
    "lmdb_kept": (
        _true("pickles", "an LMDB environment on the dataset"),
        _arguable(_CUT, _MAPPED_BEFORE),
        _true(
            "truncated-at-rest", "LMDB maps the file, does not ask for its size, and gets SIGBUS"
        ),
    ),
    "tv_lsun": (
        _true("pickles", "an LMDB environment on the dataset"),
        _arguable(_CUT, _MAPPED_BEFORE),
    ),
    "h5_kept": (
        _true("pickles", "an open HDF5 file on the dataset"),
        _true("read-error-next-epoch", "after one EIO the same handle gives zeros"),
        _arguable(f"{_CUT} truncated-next-epoch", _MAPPED_BEFORE),
    ),
    "deep_text_like": (
        _true("pickles", "an LMDB environment on the dataset"),
        _true("corrupted-file", "a black picture in place of a damaged one"),
        _arguable(_CUT, _MAPPED_BEFORE),
    ),
    "deep_text_files": (
        _true(f"{_STORAGE} {_SOME} {_CUT}", "a black picture in place of an error"),
    ),
    "realesrgan_like": (
        _true(_SOME, "another picture in place of an error"),
        _true(f"{_STORAGE} {_CUT}", "a wrong index or an unset variable in place of the error"),
    ),
    "mmps_like": (
        _true(_SOME, "another picture in place of an error"),
        _true(f"{_STORAGE} {_CUT}", "hundreds of chained errors, and the last one is another"),
    ),
    "neighbour": (_arguable(_SOME, "the next picture, as the author means it"),),
    "jepa_like": (
        _true(_SOME, "another picture in place of an error"),
        _true(f"{_STORAGE} {_CUT}", "a loop without an end"),
    ),
    "deeplake_torch": (
        _true(
            f"read-error-next-epoch read-error-later read-error-transient file-missing {_CUT}",
            "zeros, or leftover memory, in place of what cannot be read",
        ),
        _true(
            "open-error permission-denied read-error-first closed-descriptor descriptor-exhaustion",
            "SIGFPE where nothing can be read",
        ),
    ),
    "array_record_source": (
        _true("workers-agree", "its threads are not inherited by forked workers, which die"),
    ),
    "grain_files": (_true("read-error-later", _NUMPY_LOAD),),
    "tfrecord_plain": (
        _true("workers-agree", "without an index each worker gives the whole file"),
        _true("pickles", "a lambda on the dataset"),
        _true("truncated-half truncated-empty", "what is missing at the end is not noticed"),
        _arguable("truncated-tail", "its words are: Failed to read the record"),
    ),
    "xbatcher_h5": (_arguable(_CUT, _MAPPED_BEFORE),),
    "tonic_cached": (
        _true("read-error-later", _NUMPY_LOAD),
        _true("disk-full", "HDF5 ends the worker by SIGSEGV as it closes the file"),
    ),
    "lhotse_iterable": (
        _true("used-before", "a sampler goes on where an epoch was left, so the next one is short"),
        _true("truncated-half truncated-tail", _SHORTER_SOUND),
        _true("truncated-empty", "gzip takes an empty file for an empty archive"),
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
            "truncated-at-rest empty-at-rest",
            "shorter or empty DNA, where an index lies beside the file",
        ),
    ),
    "nanogpt_batches": (
        _true("truncated-at-rest", "the range of the random places is that of the shorter file"),
    ),
    "memmap_blocks": (
        _true("truncated-at-rest", "16 of 32 samples: the size of the file is the length"),
    ),
    "vilt_like": (
        _true("missing-at-rest", "16 of 32 samples: a table that is not there is left out"),
        _arguable("read-error-at-rest", _BUS_ERROR),
    ),
    "lerobot_like": (_arguable("read-error-at-rest", _BUS_ERROR),),
    "safetensors_kept": (
        _true("pickles", "an open file of safetensors on the dataset"),
        _arguable("read-error-at-rest", _BUS_ERROR),
    ),
    "torch_mapped": (_true("empty-at-rest", "torch blames the way in which the file was saved"),),
    "fromfile_rows": (
        _true("truncated-at-rest empty-at-rest", "the size of the file is the length"),
        _true("read-error-at-rest", "np.fromfile swallows the EIO; rows of leftover memory"),
    ),
    "json_parsed": (
        _true("truncated-at-rest empty-at-rest", "JSON lines have no end that could be missing"),
    ),
    "hf_dict": (_arguable("read-error-at-rest", _BUS_ERROR),),
    "hf_images": (_arguable("read-error-at-rest", _BUS_ERROR),),
    "tensordict_memmap": (
        _true(
            "truncated-at-rest empty-at-rest",
            "torch.from_file lengthens the short file with zeros, on the disk as well",
        ),
        _true("missing-at-rest", "samples without the key whose file is missing"),
    ),
    "sqlite_counted": (
        _true(
            f"{_STORAGE} file-missing truncated-empty empty-at-rest missing-at-rest",
            _SQLITE,
        ),
    ),
    "pandas_csv": (_true("truncated-at-rest", "215 of 400 rows: a text of lines has no end"),),
    "ranks_wds_plain": (_true("ranks-agree", "it refuses several ranks without a node splitter"),),
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
        _arguable("ranks-agree", "the trainer adds the sampler, and was not handed over"),
    ),
    "ranks_accelerate_seedable": (
        _true(
            "ranks-agree",
            "each rank shuffles by its own seed unless `set_seed` was called, under torchrun, too",
        ),
    ),
    "ranks_stateful_plain": (_true("ranks-agree", "no sampler: each rank has all samples"),),
    "resume_stateful_torch_sampler": (
        _true(_RESUMES, "torch's `RandomSampler` has no state, so the rest is of another order"),
    ),
    "resume_hf_shuffled": (
        _true(_RESUMES, "each worker loads its state before it takes its part of the files"),
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
