"""Keras on torch: fit with callbacks, its own optimizer."""
import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.randn(400, 10).astype("float32"); y = (x[:, :3].sum(1) > 0).astype("int64")
net = keras.Sequential([keras.Input((10,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
net.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
found = net.fit(x, y, batch_size=20, epochs=6, validation_split=0.2, verbose=0, callbacks=[keras.callbacks.EarlyStopping(patience=5), keras.callbacks.ReduceLROnPlateau(patience=2)])
print(found.history["loss"], found.history["val_accuracy"])
np.savez("net.npz", *net.get_weights())
