"""Sound and video: soundfile, scipy, torchaudio, decord, PyAV, OpenCV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

from field import data, tried


class Sounds:
    """A WAV file a sample."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.wav")))

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, path: str):
        """The sound of one file."""
        import soundfile

        return soundfile.read(path, dtype="float32")[0]

    def __getitem__(self, index: int):
        return torch.from_numpy(np.array(self.read(self.paths[index])))


@tried("soundfile, a file a sample", "soundfile", "scipy.io", write=data.sounds)
def soundfile_folder(folder: Path):
    return Sounds(folder)


class ScipySounds(Sounds):
    """The same by SciPy."""

    def read(self, path: str):
        """The sound of one file."""
        from scipy.io import wavfile

        return wavfile.read(path)[1]


@tried("scipy `wavfile.read`, a file a sample", "scipy", "scipy.io", write=data.sounds)
def scipy_folder(folder: Path):
    return ScipySounds(folder)


@tried("Hugging Face audiofolder", "datasets", "soundfile", "scipy.io", write=data.sounds)
def hf_audio(folder: Path):
    from datasets import load_dataset

    dataset = load_dataset(
        "audiofolder",
        data_files=sorted(map(str, folder.glob("*.wav"))),
        split="train",
        cache_dir=str(folder / "cache"),
    )
    return dataset.cast_column("audio", _undecoded())


def _undecoded():
    from datasets import Audio

    return Audio(decode=False)


def _videos(folder: Path) -> None:
    import cv2

    for number in range(6):
        code = cv2.VideoWriter.fourcc(*"mp4v")
        out = cv2.VideoWriter(str(folder / f"{number}.mp4"), code, 10, (64, 64))
        frames = data.noise(number, 12, 64, 64, 3)
        for frame in frames:
            out.write(frame)
        out.release()


class Clips:
    """Every fourth frame of a video."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(map(str, folder.glob("*.mp4")))

    def __len__(self) -> int:
        return len(self.paths)


class DecordClips(Clips):
    """By decord."""

    def __getitem__(self, index: int):
        import decord

        reader = decord.VideoReader(self.paths[index], num_threads=1)
        return torch.from_numpy(reader.get_batch([0, 4, 8]).asnumpy())


@tried(
    "decord `VideoReader`",
    "decord",
    "cv2",
    write=_videos,
    loader={"num_workers": 2, "batch_size": 2},
)
def decord_clips(folder: Path):
    return DecordClips(folder)


class CvClips(Clips):
    """By OpenCV."""

    def __getitem__(self, index: int):
        import cv2

        capture = cv2.VideoCapture(self.paths[index])
        frames = []
        while True:
            come, frame = capture.read()
            if not come:
                break
            frames.append(frame)
        capture.release()
        return torch.from_numpy(np.stack(frames))


@tried("OpenCV `VideoCapture`", "cv2", write=_videos, loader={"num_workers": 2, "batch_size": 2})
def cv_clips(folder: Path):
    return CvClips(folder)


class AvClips(Clips):
    """By PyAV, as torchvision's readers do."""

    def __getitem__(self, index: int):
        import av

        with av.open(self.paths[index]) as container:
            frames = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
        return torch.from_numpy(np.stack(frames))


@tried(
    "PyAV, a video a sample", "av", "cv2", write=_videos, loader={"num_workers": 2, "batch_size": 2}
)
def av_clips(folder: Path):
    return AvClips(folder)


def _cuts(folder: Path) -> None:
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

    data.sounds(folder)
    cuts = []
    for path in sorted(folder.glob("*.wav")):
        recording = Recording.from_file(path, recording_id=path.stem)
        length = recording.duration
        supervision = SupervisionSegment(path.stem, path.stem, 0, length, text=path.stem)
        cuts.append(MonoCut(path.stem, 0, length, 0, [supervision], recording=recording))
    CutSet.from_cuts(cuts).to_file(str(folder / "cuts.jsonl.gz"))


@tried(
    "lhotse `IterableDatasetWrapper`, one worker",
    "lhotse",
    "lhotse.dataset",
    "lhotse.dataset.speech_recognition",
    "scipy.io",
    write=_cuts,
)
def lhotse_iterable(folder: Path):
    from lhotse import CutSet
    from lhotse.dataset import K2SpeechRecognitionDataset, SimpleCutSampler
    from lhotse.dataset.input_strategies import AudioSamples
    from lhotse.dataset.iterable_dataset import IterableDatasetWrapper

    cuts = CutSet.from_file(folder / "cuts.jsonl.gz")
    sampler = SimpleCutSampler(cuts, max_cuts=2, shuffle=False, rank=0, world_size=1)
    read = K2SpeechRecognitionDataset(input_strategy=AudioSamples())
    stream = IterableDatasetWrapper(dataset=read, sampler=sampler)
    return DataLoader(stream, batch_size=None, num_workers=1)
