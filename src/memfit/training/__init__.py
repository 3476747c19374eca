"""Do it, safely: the step a plan describes, `fit`, the guard, validation."""
