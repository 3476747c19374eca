"""No finding on the pipelines that memfit builds, nor on the examples of TensorFlow's tf.data guide."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import memfit
from data.photos import write_photo

DATA = tf.data.Dataset


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        write_photo(folder / f"class_{number % 2}" / f"{number}.jpg", seed=number)
    return folder


@pytest.mark.parametrize("cache", ["memory", "disk", None])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_no_finding_on_image_pipelines_of_memfit(photos, cache, on_error, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path))
    train, validation = memfit.images(
        photos,
        size=(32, 32),
        batch_size=2,
        validation_split=0.5,
        cache=cache,
        on_error=on_error,
        augment=[keras.layers.RandomFlip(), np.fliplr],
    )
    assert not list(memfit.lint(train, validation, host="1GiB"))


def test_no_finding_on_array_pipelines_of_memfit():
    x = np.zeros((1000, 64, 64), np.float32)
    assert not list(memfit.lint(memfit.arrays(x, x, batch_size=32, shuffle=True), host="1GiB"))


# The pipelines of https://www.tensorflow.org/guide/data, in its order, with small data in place of downloads. Left
# out is `repeat(2).shuffle(100)`, which the guide shows as what not to do.


def from_slices():
    return DATA.from_tensor_slices([8, 3, 0, 8, 2, 1])


def zipped():
    first = DATA.from_tensor_slices(tf.random.uniform([4, 10], minval=1, maxval=10, dtype=tf.int32))
    second = DATA.from_tensor_slices(
        (tf.random.uniform([4]), tf.random.uniform([4, 100], maxval=100, dtype=tf.int32))
    )
    return DATA.zip((first, second))


def fashion_mnist():
    return DATA.from_tensor_slices((np.zeros((60000, 28, 28)), np.zeros(60000, np.uint8)))


def counting_generator():
    generated = DATA.from_generator(
        lambda stop: iter(range(stop)), args=[25], output_types=tf.int32, output_shapes=()
    )
    return generated.repeat().batch(10)


def series_generator():
    generated = DATA.from_generator(
        lambda: iter([(0, np.zeros(3))]), output_types=(tf.int32, tf.float32), output_shapes=((), (None,))
    )
    return generated.shuffle(20).padded_batch(10)


def tfrecords():
    return tf.data.TFRecordDataset(filenames=["fsns.tfrec"])


def text_lines():
    files = DATA.from_tensor_slices(["a.txt", "b.txt"])
    return files.interleave(tf.data.TextLineDataset, cycle_length=3)


def filtered_lines():
    lines = tf.data.TextLineDataset("titanic.csv")
    return lines.skip(1).filter(lambda line: tf.not_equal(tf.strings.substr(line, 0, 1), "0"))


def processed_paths():
    def process_path(file_path):
        return tf.io.read_file(file_path), tf.strings.split(file_path, "/")[-2]

    return DATA.from_tensor_slices(["roses/1.jpg", "daisy/2.jpg"]).shuffle(2).map(process_path)


def simple_batches():
    return DATA.zip((DATA.range(100), DATA.range(0, -100, -1))).batch(7, drop_remainder=True)


def padded_batches():
    return (
        DATA.range(100)
        .map(lambda x: tf.fill([tf.cast(x, tf.int32)], x))
        .padded_batch(4, padded_shapes=(None,))
    )


def repeated_lines():
    return tf.data.TextLineDataset("titanic.csv").repeat(3).batch(128)


def shuffled_lines():
    lines = tf.data.TextLineDataset("titanic.csv")
    return DATA.zip((DATA.counter(), lines)).shuffle(buffer_size=100).batch(20)


def shuffle_before_repeat():
    return DATA.zip((DATA.counter(), DATA.range(500))).shuffle(buffer_size=100).batch(10).repeat(2)


def parse_image(filename):
    image = tf.io.decode_jpeg(tf.io.read_file(filename))
    image = tf.image.convert_image_dtype(image, tf.float32)
    return tf.image.resize(image, [128, 128]), tf.strings.split(filename, "/")[-2]


def flowers():
    return DATA.from_tensor_slices(["roses/1.jpg", "daisy/2.jpg"]).shuffle(2).map(parse_image)


def rotated_flowers():
    def rotate(image, label):
        shape = image.shape
        [image] = tf.py_function(lambda picture: picture, [image], [tf.float32])
        image.set_shape(shape)
        return image, label

    return flowers().map(rotate)


def parsed_records():
    def parse(example):
        return tf.io.parse_example(example[tf.newaxis], {"image": tf.io.FixedLenFeature((), tf.string)})

    return tf.data.TFRecordDataset(["fsns.tfrec"]).map(parse)


def time_series():
    def dense(batch):
        return batch[:-1], batch[1:]

    return DATA.range(100000).batch(10, drop_remainder=True).map(dense)


def windows():
    return DATA.range(100000).window(5, shift=1).flat_map(lambda part: part.batch(5, drop_remainder=True))


def resampled():
    positive = DATA.from_tensor_slices(np.zeros((100, 4))).shuffle(100).repeat()
    negative = DATA.from_tensor_slices(np.ones((100, 4))).shuffle(100).repeat()
    return DATA.sample_from_datasets([positive, negative], [0.5, 0.5]).batch(10)


def fashion_mnist_for_keras():
    images = DATA.from_tensor_slices((np.zeros((60000, 28, 28)), np.zeros(60000, np.int32)))
    return images.shuffle(5000).batch(32)


GUIDE = [
    from_slices,
    zipped,
    fashion_mnist,
    counting_generator,
    series_generator,
    tfrecords,
    text_lines,
    filtered_lines,
    processed_paths,
    simple_batches,
    padded_batches,
    repeated_lines,
    shuffled_lines,
    shuffle_before_repeat,
    flowers,
    rotated_flowers,
    parsed_records,
    time_series,
    windows,
    resampled,
    fashion_mnist_for_keras,
]


def test_no_finding_on_the_examples_of_the_tf_data_guide():
    noisy = {example.__name__: memfit.lint(example(), host="16GiB") for example in GUIDE}
    assert not {name: findings for name, findings in noisy.items() if len(findings)}
