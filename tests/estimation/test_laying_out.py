"""How Keras makes a model's variables, against the real allocator."""

from memfit.estimation.replay.allocator import ADDRESS, BFC
from memfit.estimation.replay.layout import lay_out
from prepared import in_arena

SMALLEST = 256  # bytes: what is smaller is a number, a seed or a handle


def _made() -> tuple[list[tuple[int, int]], list[tuple[int, bool]]]:
    """Where a model's variables lie, with their bytes; and their bytes in the order in which they were made."""
    import keras
    from keras import layers

    from memfit.estimation.recording.kept import is_random, size_of
    from memfit.estimation.recording.sending import made_in_order
    from memfit.estimation.recording.trace import mark, traced

    with traced() as seen:
        inputs = keras.Input((16,), dtype="int32")
        # The seed of a dropout is made before the layer that it is called with.
        x = layers.Dropout(0.1)(layers.Embedding(500, 96)(inputs))
        x = layers.LayerNormalization()(x)
        x = layers.MultiHeadAttention(4, 24)(x, x)
        model = keras.Model(inputs, layers.Dense(64)(x))
        mark()
    alive = {}
    for event in seen[0]:
        if event.freed:
            alive.pop(event.address, None)
        elif event.requested > SMALLEST:
            alive[event.address] = event.requested
    return sorted(alive.items()), [(size_of(v), is_random(v)) for v in made_in_order(model.variables)]


def test_variables_are_laid_out_where_keras_has_them():
    real, variables = in_arena(_made, memory="1GiB")
    laid = lay_out([size for size, _ in variables], {n for n, (_, random) in enumerate(variables) if random})
    held = [None] * len(laid.sizes)
    BFC().serve(laid.codes, laid.sizes, held, {})
    modelled = sorted(
        (chunk[ADDRESS], size) for chunk, (size, _) in zip(held, variables, strict=False) if size > SMALLEST
    )
    assert len(real) == len(modelled)
    assert [(at - real[0][0], size) for at, size in real] == [
        (at - modelled[0][0], size) for at, size in modelled
    ]
