"""The private TensorFlow APIs this room uses, because nothing public can tell.

Checked with TensorFlow 2.19.0 and 2.21.0.
"""

import sys


def is_initialised() -> bool:
    """Says whether TensorFlow has started its devices in this process, without starting them.

    The public calls that list logical devices or ask for memory figures initialise the devices themselves.
    """
    context = sys.modules.get("tensorflow.python.eager.context")
    return bool(context is not None and context.context()._initialized)
