"""Image pipelines: right pixels, right labels, an order that can be gone back to."""

import base64

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from data.photos import picture, write_photo

# ruff: noqa: E501
# Written by Pillow 13 from a 40 x 30 gradient: lossless, lossy, extended with metadata, and with alpha.
WEBP = {
    "lossless": "UklGRpQAAABXRUJQVlA4TIgAAAAvJ0AHALmM6H8sBAJJKPtzDhED0v+oakHrEWzbNpJEZXf9t7z3DW5zAUGR/6MJCIr8Hy2Mtm1"
    "DjNpudwAAAgAFgE4ApHdfHIAygLbsfZo7GaTJHJQ3JjBHkmuu+gyVay7tR4U5ksxB5Q/cPD1E3B2bI8kcFBuT8J27/Deepr9xc+yfJMzRyRwE",
    "lossy": "UklGRlIAAABXRUJQVlA4IEYAAAAwBACdASooAB4ALk02m02hJCQkBABMS0gAnAE8xfAFb+o2+/KRjHXn9gAA/v7k71rMrkpHP2YtaIAS"
    "LQx1Yhpr+/kRIAAA",
    "extended": "UklGRnoAAABXRUJQVlA4WAoAAAAIAAAAJwAAHQAAVlA4IEYAAAAwBACdASooAB4ALk02m02hJCQkBABMS0gAnAE8xfAFb+o2+/KRjH"
    "Xn9gAA/v7k71rMrkpHP2YtaIASLQx1Yhpr+/kRIAAARVhJRg4AAABJSSoACAAAAAAAAAAAAA==",
    "alpha": "UklGRigAAABXRUJQVlA4TBsAAAAvJ0AHEA8Qgxwn24yEkIDwwP+1HsgR/Y8ShgAA",
}
# A GIF of two frames, red and blue, and a red BMP.
GIF = "R0lGODdhBAACAIEAAP8AAAAAAAAAAAAAACwAAAAABAACAAAIBwABCBwoMCAAIfkEAQAAAQAsAAAAAAQAAgCBAAD/AAAAAAAAAAAACAcAAQgcKDAgADs="
BMP = (
    "Qk1OAAAAAAAAADYAAAAoAAAABAAAAAIAAAABABgAAAAAABgAAADEDgAAxA4AAAAAAAAAAAAAAAD/AAD/AAD/AAD/AAD/AAD/AAD/AAD/"
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(10):
        write_photo(folder / ("cats", "dogs")[number % 2] / f"{number}.jpg", seed=number)
    return folder


def rows(dataset):
    """All images and labels of one iteration, as arrays."""
    batches = list(dataset)
    if isinstance(batches[0], tuple):
        return tuple(np.concatenate([batch[i].numpy() for batch in batches]) for i in range(2))
    return np.concatenate([batch.numpy() for batch in batches])


def test_folders_are_classes_and_pixels_are_bytes(photos):
    dataset = memfit.images(photos, size=(30, 40), batch_size=4, shuffle=False, cache=None)
    assert dataset.element_spec == (
        tf.TensorSpec((None, 30, 40, 3), tf.uint8),
        tf.TensorSpec((None,), tf.int32),
    )
    assert dataset.class_names == ["cats", "dogs"]
    assert int(dataset.cardinality()) == 3
    images, labels = rows(dataset)
    assert labels.tolist() == [0] * 5 + [1] * 5
    for path, image in zip(dataset.file_paths, images, strict=True):
        whole = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        np.testing.assert_array_equal(image, np.floor(tf.image.resize(whole, (30, 40), method="area") + 0.5))


def test_a_large_photo_decoded_at_reduced_scale_looks_the_same(tmp_path):
    path = str(write_photo(tmp_path / "large.jpg", height=600, width=800, noise=30))
    image = rows(memfit.images([path], size=(60, 80), cache=None))[0].astype(float)
    whole = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    antialiased = tf.image.resize(whole, (60, 80), antialias=True).numpy()
    plain = tf.image.resize(whole, (60, 80)).numpy()
    assert np.abs(image - antialiased).mean() < np.abs(plain - antialiased).mean() / 4
    assert np.abs(image - antialiased).mean() < 3


def test_all_formats_are_told_apart_by_content(tmp_path):
    gradient = np.linspace(0, 255, 40 * 30 * 3).reshape(30, 40, 3)
    webp = WEBP if hasattr(tf.io, "decode_webp") else {}  # TensorFlow 2.20 or later
    for name, text in webp.items():
        (tmp_path / f"{name}.webp").write_bytes(base64.b64decode(text))
    (tmp_path / "a.gif").write_bytes(base64.b64decode(GIF))
    (tmp_path / "b.bmp").write_bytes(base64.b64decode(BMP))
    write_photo(tmp_path / "c.png", seed=3)
    (tmp_path / "png_in_disguise.jpg").write_bytes((tmp_path / "c.png").read_bytes())
    dataset = memfit.images(tmp_path, size=(30, 40), shuffle=False, cache=None)
    images = dict(zip((path.rsplit("/")[-1] for path in dataset.file_paths), rows(dataset), strict=True))
    if webp:
        assert np.abs(images["lossless.webp"] - gradient).max() <= 1
        assert np.abs(images["lossy.webp"] - gradient).mean() < 6
        assert np.abs(images["extended.webp"] - gradient).mean() < 6
        assert images["alpha.webp"][:, 0, :].max() == 200
    for name in ("a.gif", "b.bmp"):
        assert (images[name] == [255, 0, 0]).all()
    np.testing.assert_array_equal(images["png_in_disguise.jpg"], images["c.png"])
    shrunk = tf.image.resize(picture(seed=3), (30, 40), method="area")
    np.testing.assert_array_equal(images["c.png"], np.floor(shrunk + 0.5))


def test_each_epoch_has_its_own_order_and_any_batch_can_be_gone_back_to(photos):
    augment = [keras.layers.RandomFlip(), keras.layers.RandomBrightness(0.2)]

    def made():
        return memfit.images(photos, size=(24, 32), batch_size=3, seed=7, augment=augment, cache="memory")

    dataset = made()
    epochs = [[(x.numpy(), y.numpy()) for x, y in dataset] for _ in range(3)]
    assert sorted(np.concatenate([y for _, y in epochs[0]])) == [0] * 5 + [1] * 5
    assert not np.array_equal(
        np.concatenate([x for x, _ in epochs[0]]), np.concatenate([x for x, _ in epochs[1]])
    )
    resumed = made().memfit.resume(epoch=1, batch=2)  # nothing but the position is carried over
    for expected in (epochs[1][2:], epochs[2]):
        got = list(resumed)
        assert len(got) == len(expected)
        for (x, y), (wanted_x, wanted_y) in zip(got, expected, strict=True):
            np.testing.assert_array_equal(x, wanted_x)
            np.testing.assert_array_equal(y, wanted_y)


def test_an_iteration_left_half_way_changes_nothing(photos):
    dataset = memfit.images(photos, size=(8, 8), batch_size=2, seed=1, cache=None)
    first = next(iter(dataset))[0].numpy()
    np.testing.assert_array_equal(first, next(iter(dataset))[0].numpy())
    assert dataset.memfit.order.position.epoch == 0


def test_keras_goes_through_the_epochs_in_their_order(photos):
    seen = []

    class Spy(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda v: seen.append(v.numpy()), [x], [])
            return tf.reshape(tf.cast(x, tf.float32), (-1, 8 * 8 * 3)) / 255

    dataset = memfit.images(photos, size=(8, 8), batch_size=4, seed=3)
    model = keras.Sequential([Spy(), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(dataset, epochs=2, verbose=0, shuffle=False)
    again = memfit.images(photos, size=(8, 8), batch_size=4, seed=3)
    expected = [x.numpy() for _ in range(2) for x, _ in again]
    assert len(seen) == len(expected)
    for got, wanted in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert dataset.memfit.order.position.epoch == 2


def test_shards_share_out_each_epoch_without_overlap(photos):
    paths = sorted(str(path) for path in photos.rglob("*.jpg"))
    shards = [
        memfit.images(paths, list(range(10)), size=(8, 8), batch_size=2, seed=5, shard=(index, 3), cache=None)
        for index in range(3)
    ]
    for _ in range(2):
        labels = [rows(shard)[1].tolist() for shard in shards]
        assert sorted(number for part in labels for number in part) == list(range(10))
        assert [len(part) for part in labels] == [4, 3, 3]


def test_validation_is_a_fixed_share_without_shuffle_or_augmentation(photos):
    def break_it(image):
        return np.zeros_like(image)

    train, validation = memfit.images(
        photos, size=(24, 32), batch_size=4, validation_split=0.3, seed=2, augment=[break_it]
    )
    assert not set(train.file_paths) & set(validation.file_paths)
    assert (len(train.file_paths), len(validation.file_paths)) == (7, 3)
    assert rows(train)[0].max() == 0
    first, second = rows(validation), rows(validation)
    assert first[0].min() > 0
    np.testing.assert_array_equal(first[0], second[0])


def test_python_and_albumentations_style_augmentation_keep_shape_and_are_seeded(photos):
    class Transform:
        """Draws from the global generator, as callables without seeds do."""

        def __call__(self, *args, force_apply=False, **data):
            return {"image": np.roll(data["image"], np.random.randint(8), axis=1)}

    def with_generator(image, rng):
        return image[:16] if image.shape[0] > 16 and rng is not None else image

    def made():
        return memfit.images(
            photos, size=(24, 32), batch_size=5, seed=1, augment=[Transform(), with_generator], cache=None
        )

    dataset = made()
    assert dataset.element_spec[0].shape.as_list() == [None, 16, 32, 3]
    np.random.seed(0)
    state = np.random.get_state()[1].copy()
    np.testing.assert_array_equal(rows(dataset)[0], rows(made())[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_mixing_layers_mix_the_labels_too(photos):
    paths = sorted(str(path) for path in photos.rglob("*.jpg"))
    targets = np.eye(10, dtype=np.float32)
    dataset = memfit.images(
        paths, targets, size=(8, 8), batch_size=10, augment=[keras.layers.MixUp(alpha=0.4)]
    )
    _, labels = rows(dataset)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-5)
    assert ((labels > 0).sum(axis=1) > 1).any()


def test_scaling_in_an_augmentation_is_refused(photos):
    for scaling in (keras.layers.Rescaling(1 / 255), lambda image: image / 255.0):
        with pytest.raises(memfit.InvalidInput, match="Rescaling"):
            memfit.images(photos, size=(8, 8), augment=[scaling])


def test_tables_name_files_and_any_kind_of_labels(tmp_path, photos):
    folder = photos / "cats"
    names = sorted(path.name for path in folder.iterdir())[:3]

    def read(head, *rows):
        lines = [head, *(",".join(map(str, row)) for row in rows)]
        (folder / "table.csv").write_text("\n".join(lines))
        dataset = memfit.images(folder / "table.csv", size=(8, 8), shuffle=False, cache=None)
        ((_, labels),) = dataset
        return dataset, labels.numpy()

    try:
        dataset, labels = read("label,filename", *zip("bab", names, strict=True))
        assert dataset.file_paths == [str(folder / name) for name in names]
        assert (labels.tolist(), dataset.class_names) == ([1, 0, 1], ["a", "b"])
        assert read("file,age", *zip(names, (1.5, 2, 3), strict=True))[1].dtype == np.float32
        _, labels = read("file,tags", *zip(names, ("x|y", "", "y"), strict=True))
        assert labels.tolist() == [[1, 1], [0, 0], [0, 1]]
        _, labels = read("file,x,y", *((name, 1, 0.5) for name in names))
        assert labels.tolist() == [[1, 0.5]] * 3
    finally:
        (folder / "table.csv").unlink()


def test_wrong_settings_are_named(photos, tmp_path):
    for arguments, message in [
        ({"size": (0, 5)}, "size is"),
        ({"size": (5, 5), "channels": 4}, "channels"),
        ({"size": (5, 5), "batch_size": 0}, "batch_size"),
        ({"size": (5, 5), "validation_split": 1.5}, "validation_split"),
        ({"size": (5, 5), "on_error": "ignore"}, "on_error"),
        ({"size": (5, 5), "cache": "ram"}, "cache is"),
        ({"size": (5, 5), "shard": (2, 2)}, "shard"),
        ({"size": (5, 5), "labels": [1, 2]}, "one label for each"),
        ({"size": (500, 500), "cache": "memory", "memory": "4MiB"}, "must fit"),
    ]:
        with pytest.raises(memfit.InvalidInput, match=message):
            memfit.images(photos, **arguments)
    with pytest.raises(memfit.InvalidInput, match="at least one image"):
        memfit.images(tmp_path, size=(5, 5))
