"""Private names of Keras, TensorFlow and JAX are used in `memfit.compat` alone, each in one place."""

from collections import defaultdict

from compat.private_names import COMPAT, private_uses


def test_private_names_of_other_libraries_are_used_in_compat_only():
    outside = [str(use) for use in private_uses() if use.file.parent != COMPAT]
    assert not outside, "Wrap these in memfit.compat, with a canary in tests/compat:\n" + "\n".join(outside)


def test_each_private_name_has_one_wrapper():
    places = defaultdict(set)
    for use in private_uses():
        if use.file.parent == COMPAT:
            library = use.file.stem.partition("_")[0]
            places[library, use.name, use.written].add(f"{use.file.stem}.{use.function}")
    several = {name: sorted(where) for (_, name, _), where in places.items() if len(where) > 1}
    assert not several
