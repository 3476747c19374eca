"""The sections of docs/benchmarks.md: one for each benchmark, in the order of the page."""

from collections.abc import Callable
from dataclasses import dataclass

import rows
from rows import Row


@dataclass(frozen=True)
class Section:
    """One benchmark on the page.

    Attributes:
        title: Its heading.
        target: The make target that measures it.
        results: The files in `benchmarks/results/` it is made of.
        columns: The heads of its table.
        rows: Makes the rows from the figures of those files.
        note: What a reader has to know to read the table.
        older: Whether it was measured before the code was reorganised.
    """

    title: str
    target: str
    results: tuple[str, ...]
    columns: Row
    rows: Callable[..., list[Row]]
    note: str = ""
    older: bool = False


_TABLE = ("", "measured")
_PEAKS = ("predicted", "measured", "error")
SECTIONS = (
    Section(
        "Estimates: 40 trainings",
        "bench-estimate",
        ("estimate",),
        _TABLE,
        rows.list_estimates,
        note="Measured is the median of three processes, each of five steps. Networks of a few large ops peak "
        "higher or lower from run to run, depending on which ops run at the same time.",
    ),
    Section(
        "Estimates and plans: networks it was not tuned on",
        "bench-zoo",
        ("zoo",),
        ("network", *_PEAKS, "margin", "completes in what it needs", "exact plan"),
        rows.list_zoo,
        note="The arena of a plan has room for half of stock's activations. Random networks (`make fuzz`) were "
        "trained beside the first 21 rows, at the lowest priority. The networks are in float32, and not trained: "
        "a last digit that differs moves a loss of some of them by up to 3% within three steps. In float64, "
        "MobileNetV2's exact plan was within 2e-15 of stock Keras.",
    ),
    Section(
        "Estimates: random networks",
        "fuzz-peaks",
        ("fuzz-peaks",),
        _TABLE,
        rows.list_random_peaks,
        note="Peaks of 8 MiB and more, at 1/4 to 16 times the estimated batch. Measured with a recorder of before "
        "18 November 2026. Unfinished: 100 networks planned.",
    ),
    Section(
        "Plans: random networks in an arena for half of their activations",
        "fuzz-plans",
        ("fuzz-plans",),
        _TABLE,
        rows.list_random_plans,
        note="Odd batches, float64. The largest errors are predictions that are too high, of steps that fit as "
        "they are: in a small arena the allocator cuts its memory otherwise. Unfinished: 100 networks are to be "
        "drawn. Other work ran beside it. Measured with a recorder of before 18 November 2026.",
    ),
    Section(
        "Exactness: random networks against stock Keras in float64",
        "fuzz",
        ("fuzz",),
        ("networks", "that differ"),
        rows.list_random_networks,
    ),
    Section(
        "A job that fits: what memfit costs",
        "bench-fit`, `make bench-guard",
        ("fit-job-that-fits", "guard"),
        ("", "step time", "stock again", "first step", "peak"),
        rows.list_costs,
    ),
    Section(
        "The largest batch in the same arena",
        "bench-fit",
        ("largest-batch",),
        ("network", "arena", "stock, by trial", "exact plan", "near plan", "planned faster than by trial"),
        rows.list_largest_batches,
        note="*Near* plans compute batch statistics over fewer samples. VGG19 has none, so both are exact there.",
        older=True,
    ),
    Section(
        "Activation checkpointing (rematerialisation)",
        "bench-remat",
        ("remat",),
        ("network", "step", "activations", "times less", "step time"),
        rows.list_rematerialised,
    ),
    Section(
        "Gradient accumulation (micro-batches)",
        "bench-fit",
        ("fit-micro-batches",),
        ("network", "batch", "micro-batch", "peak", "step time"),
        rows.list_micro_batches,
        note="VGG19 is mostly weights: it gains nothing at batch 16.",
    ),
    Section(
        "Large inputs: a 3D U-Net",
        "bench-large",
        ("large",),
        ("", "stock's peak", "memfit's peak", "time", "largest difference"),
        rows.list_large_inputs,
    ),
    Section(
        "Injected faults: killed processes and out-of-memory errors",
        "chaos",
        ("chaos",),
        ("training", "faults", "batches trained", "largest difference of a weight"),
        rows.list_faults,
        note="The machine was busy with other work.",
    ),
    Section(
        "Several ranks against one device, in float64",
        "bench-scale",
        ("scale",),
        (
            "case",
            "2 ranks differ by",
            "3 ranks",
            "same bits on all ranks",
            "stock MirroredStrategy, 2 replicas",
        ),
        rows.list_ranks,
        note="Largest difference of a weight. Most cases have batches of 15, which stock cannot divide.",
    ),
    Section(
        "Several ranks: memory and time of a step, 2 ranks",
        "bench-scale",
        ("scale",),
        _TABLE,
        rows.list_rank_costs,
        note="On loopback, without GPUs. Stock Keras does not run on several processes: two functions are patched.",
    ),
    Section(
        "Several ranks: killed, frozen and late ones",
        "chaos-scale",
        ("chaos_scale",),
        ("ranks", "faults", "every batch once", "largest difference of a weight", "noticed after at most"),
        rows.list_rank_faults,
        note="40 faults, measured over several states of the code in November 2026. Other work ran beside it.",
    ),
    Section(
        "Optimizer state",
        "bench-optimizers",
        ("optimizers",),
        ("optimizer", "state", "of Adam's"),
        rows.list_optimizers,
    ),
    Section(
        "Slim: predicted against measured peaks",
        "bench-slim",
        ("slim",),
        ("network", "variant", *_PEAKS, "spread of 3 runs"),
        rows.list_variants,
        note="Measured is the median of three processes that build the variant; spread is the largest of them "
        "over the smallest. Other work ran beside ViT and the original BiLSTM. EfficientNetV2B0 and ResNet50 are "
        "older: their variants were loaded from files with their weights, which leaves other gaps.",
    ),
    Section("Leaks: 20 loops that leak, 20 that do not", "bench-leaks", ("leaks",), _TABLE, rows.list_leaks),
    Section(
        "Many trainings: the parent's memory",
        "bench-trials",
        ("trials",),
        ("", "after 1 training", "after 100"),
        rows.list_trials,
    ),
    Section(
        "Feeding data",
        "bench-data",
        ("data",),
        _TABLE,
        rows.list_data,
        note="Speeds are relative: larger is faster.",
        older=True,
    ),
    Section(
        "Monitoring", "bench-monitor", ("monitor", "records"), ("", "costs"), rows.list_watching, older=True
    ),
    Section(
        "Largest batches by XLA's GPU compiler (predicted)",
        "bench-gpu-compiler",
        ("gpu_compiler",),
        ("network", "GPU", "largest batch, stock", "exact plan"),
        rows.list_compiled,
        note="What cuDNN takes as workspace is a guess. No GPU was used.",
        older=True,
    ),
)
