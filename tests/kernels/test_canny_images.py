"""Every kind of picture file that Canny reads, written here and read back, and those that it refuses."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from heterotask_core.errors import ApplicationError
from kernels.canny.app import CANNY, CannyParams
from kernels.canny.deep_png import ADAM7
from kernels.canny.images import GREY_WEIGHTS, grey_image, picture_content

RNG = np.random.default_rng(11)
GREY8 = RNG.integers(0, 256, (9, 14), dtype=np.uint8)
GREY16 = RNG.integers(0, 65536, (9, 14), dtype=np.uint16)
COLOUR8 = RNG.integers(0, 256, (9, 14, 3), dtype=np.uint8)
COLOUR16 = RNG.integers(0, 65536, (9, 14, 3), dtype=np.uint16)
ALPHA8 = RNG.integers(0, 256, (9, 14, 1), dtype=np.uint8)
ALPHA16 = RNG.integers(0, 65536, (9, 14, 1), dtype=np.uint16)
BITS = RNG.random((9, 14)) > 0.5


def read(path: Path) -> np.ndarray:
    return grey_image(str(path), 0, picture_content(str(path)))


def expected(pixels: np.ndarray, top: int) -> np.ndarray:
    values = pixels.astype(np.float64)
    if pixels.ndim == 3:
        values = sum(values[..., k] * GREY_WEIGHTS[k] for k in range(3))
    return (values / top).astype(np.float32)


def deep_png(pixels: np.ndarray, *, interlaced: bool = False, damage: str = "") -> bytes:
    """Encode 16-bit samples with all five filters in turn, by the specification's formulas."""
    rows, columns, channels = pixels.shape
    step = 2 * channels
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    lines = bytearray()
    for i, j, di, dj in passes:
        block = pixels[i::di, j::dj].astype(">u2")
        if not block.size:
            continue
        above = bytes(2 * block.shape[1] * channels)
        for number, row in enumerate(block):
            line = row.tobytes()
            kind = 7 if damage == "filter" else number % 5
            lines.append(kind)
            for k, value in enumerate(line):
                a = line[k - step] if k >= step else 0
                b = above[k]
                c = above[k - step] if k >= step else 0
                nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
                lines.append((value - (0, a, b, (a + b) // 2, nearest, 0, 0, 0)[kind]) % 256)
            above = line

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    packed = zlib.compress(bytes(lines))
    half = len(packed) // 2
    header = struct.pack(">IIBBBBB", columns, rows, 16, colour, 0, 0, int(interlaced))
    body = chunk(b"IHDR", header) + (chunk(b"acTL", bytes(8)) if damage == "animated" else b"")
    body += chunk(b"IDAT", packed[:half]) + chunk(b"IDAT", packed[half:]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(
    ("pixels", "mode", "grey"),
    [
        (GREY8, "L", expected(GREY8, 255)),
        (COLOUR8, "RGB", expected(COLOUR8, 255)),
        (np.concatenate([COLOUR8, ALPHA8], axis=2), "RGBA", expected(COLOUR8, 255)),
        (np.concatenate([GREY8[..., None], ALPHA8], axis=2), "LA", expected(GREY8, 255)),
        (GREY16, "I;16", expected(GREY16, 65535)),
        (BITS, "1", expected(BITS, 1)),
    ],
    ids=["grey", "colour", "colour-alpha", "grey-alpha", "grey16", "one-bit"],
)
def test_samples_of_pillow_files(tmp_path, suffix, pixels, mode, grey):
    path = tmp_path / f"picture.{suffix}"
    picture = Image.fromarray(pixels)
    assert picture.mode == mode
    picture.save(path)
    np.testing.assert_array_equal(read(path), grey)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_palette(tmp_path, suffix):
    path = tmp_path / f"palette.{suffix}"
    picture = Image.fromarray(COLOUR8).quantize(16)
    assert picture.mode == "P"
    picture.save(path)
    np.testing.assert_allclose(read(path), expected(np.asarray(picture.convert("RGB")), 255), rtol=1e-6)


@pytest.mark.parametrize("bits", [2, 4])
def test_png_of_few_bits(tmp_path, bits):
    path = tmp_path / "few.png"
    pixels = GREY8 >> (8 - bits)
    rows, columns = pixels.shape
    per_byte = 8 // bits
    padded = np.pad(pixels, ((0, 0), (0, -columns % per_byte)))
    packed = sum(padded[:, k::per_byte].astype(int) << (8 - bits * (k + 1)) for k in range(per_byte)).astype(np.uint8)
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), packed], axis=1).tobytes()
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", columns, rows, bits, 0, 0, 0, 0)
    for name, body in ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")):
        content += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    path.write_bytes(content)
    np.testing.assert_array_equal(read(path), expected(pixels, (1 << bits) - 1))


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(
    ("pixels", "grey"),
    [
        (GREY16[..., None], expected(GREY16, 65535)),
        (COLOUR16, expected(COLOUR16, 65535)),
        (np.concatenate([COLOUR16, ALPHA16], axis=2), expected(COLOUR16, 65535)),
        (np.concatenate([GREY16[..., None], ALPHA16], axis=2), expected(GREY16, 65535)),
        (COLOUR16[:3, :3], expected(COLOUR16[:3, :3], 65535)),
    ],
    ids=["grey", "colour", "colour-alpha", "grey-alpha", "tiny"],
)
def test_png_of_sixteen_bits(tmp_path, pixels, grey, interlaced):
    path = tmp_path / "deep.png"
    path.write_bytes(deep_png(pixels, interlaced=interlaced))
    np.testing.assert_array_equal(read(path), grey)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("pixels", "options", "grey"),
    [
        (GREY8, {"photometric": "minisblack"}, expected(GREY8, 255)),
        (GREY16, {"photometric": "minisblack"}, expected(GREY16, 65535)),
        (GREY16, {"photometric": "minisblack", "compression": "zlib"}, expected(GREY16, 65535)),
        (GREY8, {"photometric": "miniswhite"}, expected(255 - GREY8, 255)),
        (GREY16, {"photometric": "miniswhite"}, expected(65535 - GREY16, 65535)),
        (COLOUR8, {"photometric": "rgb"}, expected(COLOUR8, 255)),
        (COLOUR16, {"photometric": "rgb"}, expected(COLOUR16, 65535)),
        (COLOUR16, {"photometric": "rgb", "tile": (16, 16)}, expected(COLOUR16, 65535)),
        (
            np.concatenate([COLOUR16, ALPHA16], axis=2),
            {"photometric": "rgb", "extrasamples": ["unassalpha"]},
            expected(COLOUR16, 65535),
        ),
        (
            np.moveaxis(COLOUR16, -1, 0),
            {"photometric": "rgb", "planarconfig": "separate"},
            expected(COLOUR16, 65535),
        ),
        (GREY16, {"photometric": "minisblack", "bigtiff": True}, expected(GREY16, 65535)),
    ],
    ids=["8", "16", "16-zlib", "8-inverse", "16-inverse", "rgb8", "rgb16", "rgb16-tiled", "rgba16", "planes", "big"],
)
def test_tiff(tmp_path, pixels, options, grey, order):
    path = tmp_path / "picture.tiff"
    bigtiff = options.get("bigtiff", False)
    options = {k: v for k, v in options.items() if k != "bigtiff"}
    with tifffile.TiffWriter(path, byteorder=order, bigtiff=bigtiff) as file:
        file.write(pixels, metadata=None, **options)
    np.testing.assert_array_equal(read(path), grey)


@pytest.mark.parametrize(("pixels", "compression"), [(GREY8, "tiff_lzw"), (GREY16, "tiff_lzw"), (BITS, "group4")])
def test_tiff_compressed_by_libtiff(tmp_path, pixels, compression):
    path = tmp_path / "packed.tif"
    Image.fromarray(pixels).save(path, compression=compression)
    top = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535, np.dtype(bool): 1}[pixels.dtype]
    np.testing.assert_array_equal(read(path), expected(pixels, top))


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_whatever_its_name(tmp_path, mode):
    path = tmp_path / "photo.png"
    smooth = np.add.outer(np.arange(40), np.arange(50))[..., None] * np.array([1, 2, 0.5])
    Image.fromarray(smooth.astype(np.uint8)).convert(mode).save(path, format="JPEG", quality=95)
    with Image.open(path) as picture:
        grey = expected(np.asarray(picture.convert("L" if mode == "L" else "RGB")), 255)
    np.testing.assert_array_equal(read(path), grey)


def test_previews_in_a_camera_file_do_not_count(tmp_path):
    path = tmp_path / "camera.jpg"
    first = Image.fromarray(COLOUR8)
    first.save(path, format="MPO", save_all=True, append_images=[first.resize((7, 4))])
    with Image.open(path) as picture:
        assert picture.n_frames == 2
    assert read(path).shape == (9, 14)


def test_preview_in_a_tiff_does_not_count(tmp_path):
    path = tmp_path / "preview.tif"
    with tifffile.TiffWriter(path) as file:
        file.write(GREY16, metadata=None, photometric="minisblack")
        file.write(GREY16[::2, ::2], metadata=None, photometric="minisblack", subfiletype=1)
    np.testing.assert_array_equal(read(path), expected(GREY16, 65535))


def animation(path: Path) -> None:
    first, second = Image.fromarray(GREY8), Image.fromarray(255 - GREY8)
    first.save(path, format="PNG", save_all=True, append_images=[second])


def pages(path: Path) -> None:
    tifffile.imwrite(path, np.stack([GREY8, GREY8]), photometric="minisblack")


def torn(path: Path, pixels: np.ndarray, kind: str, share: float) -> None:
    noise = np.kron(pixels, np.ones((20, 20) + (1,) * (pixels.ndim - 2), dtype=pixels.dtype))
    if kind == "tifffile":
        tifffile.imwrite(path, noise, photometric="minisblack")
    else:
        Image.fromarray(noise).save(path, format=kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


BAD = {
    "missing": (lambda path: None, "is not a file"),
    "folder": (lambda path: path.mkdir(), "is not a file"),
    "empty": (lambda path: path.write_bytes(b""), "is no PNG, JPEG or TIFF"),
    "text": (lambda path: path.write_text("not a picture"), "is no PNG, JPEG or TIFF"),
    "gif": (lambda path: Image.fromarray(GREY8).save(path, format="GIF"), "is no PNG, JPEG or TIFF"),
    "tiny": (lambda path: Image.fromarray(GREY8[:2]).save(path), "2×14 pixels; edges need at least 3×3"),
    "animated": (animation, "holds 2 pictures"),
    "pages": (pages, "holds 2 pictures"),
    "float": (lambda path: tifffile.imwrite(path, GREY8.astype(np.float32)), "has pixels of float32"),
    "deep": (lambda path: tifffile.imwrite(path, GREY8.astype(np.uint32)), "has pixels of uint32"),
    "signed": (lambda path: tifffile.imwrite(path, GREY8.astype(np.int16)), "has pixels of int16"),
    "torn-png": (lambda path: torn(path, GREY8, "PNG", 0.5), "cannot be read"),
    "torn-jpeg": (lambda path: torn(path, GREY8, "JPEG", 0.5), "cannot be read"),
    "torn-tiff": (lambda path: torn(path, GREY16, "tifffile", 0.5), "cannot be read"),
    "torn-tiff-header": (lambda path: path.write_bytes(b"II*\0\x08\0"), "cannot be read"),
    "torn-png-header": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n torn"), "cannot be read|is no PNG"),
    "torn-deep-png": (lambda path: path.write_bytes(deep_png(COLOUR16)[:-80]), "the file is truncated"),
    "damaged-deep-png": (lambda path: path.write_bytes(deep_png(COLOUR16)[:60] + b"?" * 900), "is damaged"),
    "animated-deep-png": (lambda path: path.write_bytes(deep_png(COLOUR16, damage="animated")), "is animated"),
    "filter": (lambda path: path.write_bytes(deep_png(COLOUR16, damage="filter")), "unknown filter"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pictures_are_refused_in_one_line(tmp_path, case, capfd):
    make, message = BAD[case]
    path = tmp_path / "bad.png"
    make(path)
    with pytest.raises(ApplicationError, match=message) as caught:
        CANNY.build(CannyParams(image=str(path)))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_sample_that_cannot_be_read_by_this_user(tmp_path, monkeypatch):
    path = tmp_path / "secret.png"
    Image.fromarray(GREY8).save(path)

    def denied(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(ApplicationError, match=r"secret\.png' cannot be read: Permission denied"):
        CANNY.build(CannyParams(image=str(path)))


def test_another_content_is_another_graph_and_is_noticed(tmp_path):
    path = tmp_path / "picture.png"
    params = CannyParams(image=str(path))
    Image.fromarray(GREY8).save(path)
    before = picture_content(str(path))
    first = CANNY.build(params)
    assert CANNY.build(params).fingerprint() == first.fingerprint()
    Image.fromarray(255 - GREY8).save(path)
    assert CANNY.build(params).fingerprint() != first.fingerprint()
    grey_image.cache_clear()
    with pytest.raises(ApplicationError, match=r"picture\.png' has changed since the task graph was built"):
        grey_image(str(path), 4096, before)
