"""Real data that comes with Python and matplotlib, so that nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.ft2font import FT2Font
from PIL import Image
from torch import Tensor

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif"),
    *("DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol"),
    *("STIXGeneralItalic", "cmb10", "cmr10", "cmss10", "cmtt10"),
)
GLYPH_SIZES = (9, 10, 11, 12)
SIDE = 16
VOCABULARY = 64


@functools.cache
def glyphs() -> tuple[Tensor, Tensor]:
    """Digits of 14 fonts in 4 sizes: images (560, 1, 16, 16) in 0...1, and classes (560,)."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    images, classes = [], []
    for font in FONTS:
        for size in GLYPH_SIZES:
            face = FT2Font(str(folder / f"{font}.ttf"))
            face.set_size(size, 72)
            for digit in range(10):
                face.set_text(str(digit))
                face.draw_glyphs_to_bitmap()
                images.append(_centred(np.asarray(face.get_image(), dtype=np.float32) / 255.0))
                classes.append(digit)
    return torch.from_numpy(np.stack(images)[:, None]), torch.tensor(classes)


def _centred(glyph: np.ndarray) -> np.ndarray:
    glyph = glyph[:SIDE, :SIDE]
    top, left = (SIDE - glyph.shape[0]) // 2, (SIDE - glyph.shape[1]) // 2
    page = np.zeros((SIDE, SIDE), dtype=np.float32)
    page[top : top + glyph.shape[0], left : left + glyph.shape[1]] = glyph
    return page


@functools.cache
def text() -> Tensor:
    """Python's own documentation as character numbers 0...63, the rarer ones counted as 63."""
    from pydoc_data.topics import topics

    everything = "".join(topics[name] for name in sorted(topics))
    codes = np.frombuffer(everything.encode("latin-1", "replace"), dtype=np.uint8)
    counts = np.bincount(codes, minlength=256)
    table = np.full(256, VOCABULARY - 1)
    table[np.argsort(-counts, kind="stable")[: VOCABULARY - 1]] = np.arange(VOCABULARY - 1)
    return torch.from_numpy(table[codes].astype(np.int64))


@functools.cache
def patches() -> Tensor:
    """Grey 8 x 8 patches of the photograph that matplotlib ships, shape (n, 64), in 0...1."""
    path = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L").resize((256, 304)), dtype=np.float32) / 255.0
    rows, columns = grey.shape[0] // 8, grey.shape[1] // 8
    tiles = grey[: rows * 8, : columns * 8].reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3)
    return torch.from_numpy(tiles.reshape(-1, 64).copy())
