"""Draws docs/images/steps.svg: one step as stock Keras runs it and as memfit plans it, under one budget."""

from pathlib import Path
from typing import Any

import memfit
from memfit.estimation.step_timeline import timeline_of

ROOT = Path(__file__).parents[2]
BATCH, MEMORY = 64, memfit.Size("320MiB")
WIDTH, HEIGHT, LEFT, TOP = 880, 330, 74, 46
PANEL = (WIDTH - LEFT - 30) // 2 - 12
FLOOR = HEIGHT - 40
COLOURS = {
    "weights": "#4c78a8",
    "optimizer state": "#9ecae9",
    "gradients": "#f58518",
    "activations": "#54a24b",
    "inputs": "#b79a20",
    "workspace": "#b279a2",
    "rounding": "#bab0ac",
}


def _panel(timeline: Any, left: int, scale: float, title: str, over: bool) -> str:
    """One step over time, its kinds of memory on top of each other."""
    below = [0.0] * len(timeline.positions)
    parts = []
    for kind, colour in COLOURS.items():
        if kind not in timeline.kinds:
            continue
        column = timeline.kinds.index(kind)
        above = [base + row[column] * scale for base, row in zip(below, timeline.sums, strict=True)]
        xs = [left + position * PANEL for position in timeline.positions]
        edge = [f"{x:.1f},{FLOOR - y:.1f}" for x, y in zip(xs, above, strict=True)]
        edge += [f"{x:.1f},{FLOOR - y:.1f}" for x, y in reversed(list(zip(xs, below, strict=True)))]
        parts.append(f'<polygon points="{" ".join(edge)}" fill="{colour}"/>')
        below = above
    colour = "#c0392b" if over else "#2e7d32"
    parts.append(f'<text x="{left}" y="{TOP - 24}" font-weight="600">{title}</text>')
    peak = f"peak {timeline.peak} (predicted)"
    parts.append(f'<text x="{left}" y="{TOP - 8}" fill="{colour}">{peak}</text>')
    return "\n".join(parts)


def draw(stock: Any, planned: Any, memory: memfit.Size) -> str:
    """Returns both steps as one SVG."""
    scale = (FLOOR - TOP) / (1.05 * max(stock.peak, planned.peak))
    line = FLOOR - memory * scale
    second = LEFT + PANEL + 24
    legend, at = [], LEFT
    for kind, colour in COLOURS.items():
        if kind in stock.kinds:
            legend.append(f'<rect x="{at}" y="{HEIGHT - 20}" width="11" height="11" fill="{colour}"/>')
            legend.append(f'<text x="{at + 16}" y="{HEIGHT - 10}">{kind}</text>')
            at += 40 + 7 * len(kind)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"
 font-family="system-ui, sans-serif" font-size="13" fill="#333">
<title>Memory of one training step: stock Keras above the budget, memfit below it</title>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
{_panel(stock, LEFT, scale, "Stock Keras: out of memory", over=True)}
{_panel(planned, second, scale, "memfit: same result, and it fits", over=False)}
<line x1="{LEFT}" x2="{second + PANEL}" y1="{line:.1f}" y2="{line:.1f}" stroke="#c0392b" stroke-dasharray="6 4"/>
<text x="{LEFT - 8}" y="{line + 4:.1f}" text-anchor="end" fill="#c0392b">{memory}</text>
{"".join(legend)}
</svg>
"""


def build_model_and_data() -> tuple[Any, Any, Any]:
    """A residual network with BatchNormalization and dropout, and two batches for it."""
    import keras
    import numpy as np

    layers = keras.layers
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(inputs)
    for filters in (64, 64, 128, 128):
        skip = layers.Conv2D(filters, 1, strides=1, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Add()([skip, layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)])
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    return model, np.zeros((2 * BATCH, 64, 64, 3), "float32"), np.zeros(2 * BATCH, "int64")


def main() -> None:
    """Plans the training with and without enough memory, and draws both steps."""
    model, x, y = build_model_and_data()
    stock = timeline_of(memfit.estimate(model, BATCH, data=(x, y)))
    planned = memfit.plan(model, BATCH, MEMORY, "exact", data=(x, y)).timeline
    (ROOT / "docs" / "images" / "steps.svg").write_text(draw(stock, planned, MEMORY))


if __name__ == "__main__":
    main()
