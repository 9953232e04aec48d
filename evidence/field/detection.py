"""Pictures with annotations: mmengine, and with it mmdet, mmseg, mmpretrain and others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset

from field import data, tried


def _write_annotations(folder: Path) -> None:
    rows = []
    for number in range(16):
        (folder / f"{number:03}.jpg").write_bytes(data.jpeg(number))
        rows.append({"img_path": f"{number:03}.jpg", "gt_label": number % 2})
    text = json.dumps({"metainfo": {"classes": data.CLASSES}, "data_list": rows})
    (folder / "ann.json").write_text(text, encoding="utf-8")


class LoadImage:
    """As mmcv's LoadImageFromFile."""

    def __call__(self, results: dict) -> dict:
        """The picture of one row."""
        import cv2
        from mmengine import fileio

        content = np.frombuffer(fileio.get(results["img_path"]), np.uint8)
        picture = cv2.imdecode(content, cv2.IMREAD_COLOR)
        if picture is None:
            raise OSError(f"failed to load image: {results['img_path']}")
        return {"img": torch.from_numpy(picture), "label": results["gt_label"]}


@tried(
    "mmengine `BaseDataset`, behind `Subset`",
    "mmengine",
    "mmengine.dataset",
    "cv2",
    write=_write_annotations,
)
def mmengine_subset(folder: Path):
    from mmengine.dataset import BaseDataset

    dataset = BaseDataset(
        ann_file="ann.json",
        data_root=str(folder),
        data_prefix={"img_path": ""},
        pipeline=[LoadImage()],
    )
    return Subset(dataset, range(len(dataset)))
