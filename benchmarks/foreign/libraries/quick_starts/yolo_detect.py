"""Ultralytics: a nano detector on made pictures of squares, two epochs, its own trainer."""
import os

os.environ["YOLO_OFFLINE"] = "true"
import numpy as np
from PIL import Image
from ultralytics import YOLO

rng = np.random.default_rng(0)
for part, n in (("train", 48), ("val", 8)):
    os.makedirs(f"data/images/{part}", exist_ok=True); os.makedirs(f"data/labels/{part}", exist_ok=True)
    for i in range(n):
        picture = rng.integers(0, 60, (64, 64, 3), dtype=np.uint8); x, y = rng.integers(8, 40, 2); picture[y:y + 16, x:x + 16] = 220
        Image.fromarray(picture).save(f"data/images/{part}/{i}.png")
        with open(f"data/labels/{part}/{i}.txt", "w") as label: label.write(f"0 {(x + 8) / 64} {(y + 8) / 64} 0.25 0.25\n")
with open("data.yaml", "w") as file: file.write(f"path: {os.path.abspath('data')}\ntrain: images/train\nval: images/val\nnames: {{0: square}}\n")
YOLO("yolov8n.yaml").train(data="data.yaml", epochs=4, imgsz=64, batch=8, device="cpu", workers=0, plots=False, verbose=False, amp=False, project="runs", name="made", exist_ok=True, seed=0, val=False)
