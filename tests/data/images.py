#!/usr/bin/env python3
"""Images and what torchvision 0.26.0 (with Pillow 13.0.0) makes of them, for the plug-in `images`.

    python tests/data/images.py        # writes tests/data/images

Each image X has X.decoded (RGB, row by row), X.resized (Resize((24, 31)), planes) and X.cropped (Resize(20) and
CenterCrop((13, 16)), planes).
"""
import pathlib

import numpy as np
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, PILToTensor, Resize

FOLDER = pathlib.Path(__file__).parent / "images"


def picture(height, width):
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(x / (5 + c) + y / (9 - c)) + 20 * np.cos(x * y / 70 + c) for c in range(3)]
    return np.stack(waves, -1).clip(0, 255).astype(np.uint8)


def main():
    FOLDER.mkdir(exist_ok=True)
    colours = Image.fromarray(picture(47, 61))
    alpha = Image.fromarray(picture(47, 61)[..., 0])
    rgba = colours.copy()
    rgba.putalpha(alpha)
    colours.save(FOLDER / "rgb.png")
    rgba.save(FOLDER / "rgba.png")
    colours.convert("L").save(FOLDER / "gray.png")
    colours.convert("P", palette=Image.Palette.ADAPTIVE).save(FOLDER / "palette.png")
    colours.save(FOLDER / "photo.jpg", quality=90)
    colours.save(FOLDER / "progressive.jpg", quality=75, progressive=True, subsampling=0)
    colours.convert("L").save(FOLDER / "gray.jpg", quality=90)
    ways = {
        "decoded": lambda image: np.asarray(image),
        "resized": Compose([Resize((24, 31)), PILToTensor()]),
        "cropped": Compose([Resize(20), CenterCrop((13, 16)), PILToTensor()]),
    }
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".png", ".jpg"):
            for name, way in ways.items():
                image = Image.open(path).convert("RGB")
                (FOLDER / f"{path.name}.{name}").write_bytes(np.asarray(way(image)).tobytes())


if __name__ == "__main__":
    main()
