"""The levers: one change each that saves memory."""
