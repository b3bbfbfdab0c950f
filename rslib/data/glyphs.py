"""Letters drawn from the fonts that matplotlib ships: the embedded datasets `glyphs` and `glyphs2`.

What it is: a small, deterministic substitute for notMNIST that needs no download. Every letter is
drawn once per font in large; each example is one of these drawings, rotated, scaled, shifted, with
a thicker or thinner and ragged stroke, and grainy.
What it is not: real data. It is for learning the library, for tests and for CI.

The random numbers come from numpy's legacy `RandomState`, whose stream is frozen for good. What may
differ between machines is the outline drawing (Pillow's FreeType) and the last bit of floating
point; so no fingerprint is written down here, and whoever compares results compares fingerprints.
"""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from rslib import files
from rslib.data.npz import ARRAYS

LETTERS = {"glyphs": "ABCDEFGHIJ", "glyphs2": "KLMNOPQRST"}
N_TRAIN, N_TEST = 400, 100  # per class
SIZE = 28
_MASTER = 112  # pixels; the drawings are made four times larger than the examples
# The fonts with ordinary Latin capitals; matplotlib's others hold symbols, or only a few letters.
_FONTS = [
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10", "cmmi10"),
]


def _masters(letters: str) -> np.ndarray:
    """Every letter in every font, centred, softly blurred: (letters, fonts, 112, 112) in 0..1."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn = np.empty((len(letters), len(_FONTS), _MASTER, _MASTER), np.float32)
    for column, name in enumerate(_FONTS):
        # the basic layout engine: the other one depends on a library that is not always there
        path = str(folder / f"{name}.ttf")
        font = ImageFont.truetype(path, 80, layout_engine=ImageFont.Layout.BASIC)
        for row, letter in enumerate(letters):
            left, top, right, bottom = font.getbbox(letter)
            corner = ((_MASTER - left - right) / 2, (_MASTER - top - bottom) / 2)
            image = Image.new("L", (_MASTER, _MASTER))
            ImageDraw.Draw(image).text(corner, letter, fill=255, font=font)
            image = image.filter(ImageFilter.GaussianBlur(2.5))  # a slope at the edge: see render()
            drawn[row, column] = np.asarray(image, np.float32) / 255
    return drawn


def render(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x_train, y_train, x_test, y_test: (n, 1, 28, 28) uint8 and (n,) int64, in random order."""
    from scipy.ndimage import map_coordinates, zoom

    letters = LETTERS[name]
    masters = _masters(letters)
    random = np.random.RandomState(sum(map(ord, letters)))
    n_class = N_TRAIN + N_TEST
    n = n_class * len(letters)
    y = np.repeat(np.arange(len(letters)), n_class)
    font = random.randint(len(_FONTS), size=n)
    angle = np.deg2rad(random.uniform(-20, 20, n))
    scale = random.uniform(0.7, 1.05, (2, n)) * _MASTER / SIZE  # master pixels per pixel
    shift = random.uniform(-2.5, 2.5, (2, n))  # pixels
    level = random.uniform(0.15, 0.40, n)  # where the edge lies on the blurred slope: stroke width
    ink = random.uniform(0.6, 1.0, n)
    grain = random.uniform(0.05, 0.15, n)

    axis = np.arange(SIZE) - (SIZE - 1) / 2
    rows, columns = np.meshgrid(axis, axis, indexing="ij")  # (28, 28)
    centre = (_MASTER - 1) / 2
    x = np.empty((n, 1, SIZE, SIZE), np.uint8)
    for i in range(n):
        r, c = rows + shift[0, i], columns + shift[1, i]
        sin, cos = np.sin(angle[i]), np.cos(angle[i])
        where = [
            centre + scale[0, i] * (cos * r - sin * c),
            centre + scale[1, i] * (sin * r + cos * c),
        ]
        soft = map_coordinates(masters[y[i], font[i]], where, order=1)
        ragged = zoom(random.normal(0, 0.07, (7, 7)), 4, order=1)  # smooth noise along the stroke
        stroke = np.clip((soft - level[i] + ragged) * 3 + 0.5, 0, 1)
        stroke[soft < 0.02] = 0  # the noise bends strokes, it draws no new ones
        pixel = ink[i] * stroke + random.normal(0, grain[i], (SIZE, SIZE))
        x[i, 0] = np.clip(np.rint(255 * pixel), 0, 255).astype(np.uint8)

    within = np.arange(n) % n_class
    train = random.permutation(np.flatnonzero(within < N_TRAIN))
    test = random.permutation(np.flatnonzero(within >= N_TRAIN))
    return x[train], y[train], x[test], y[test]


def cache_file(name: str) -> Path:
    """Named after all that can move a pixel, this file included: no upgrade meets old pixels."""
    import matplotlib
    import PIL
    import scipy
    from PIL import features

    versions = [PIL.__version__, features.version("freetype2"), matplotlib.__version__]
    key = repr([name, *versions, np.__version__, scipy.__version__]).encode()
    digest = hashlib.sha256(key + Path(__file__).read_bytes()).hexdigest()
    return files.store() / "glyphs" / f"{name}-{digest[:16]}.npz"


def load(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`render`, through a file in the user's cache folder that is verified every time."""
    path = cache_file(name)
    try:
        # opened here, because numpy leaves a damaged file open
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as npz:
            arrays = tuple(npz[key] for key in ARRAYS)
            if str(npz["sum"]) == _sum(arrays):
                return arrays
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent, or damaged: drawing it again costs a second or two
    arrays = render(name)
    buffer = io.BytesIO()
    np.savez(buffer, sum=np.array(_sum(arrays)), **dict(zip(ARRAYS, arrays, strict=True)))
    try:
        files.write_atomically(path, buffer.getvalue())
    except OSError:
        pass  # a cache that cannot be written is only slower
    return arrays


def _sum(arrays: tuple[np.ndarray, ...]) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
