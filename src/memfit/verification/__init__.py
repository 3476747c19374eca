"""`memfit verify`: the user's own proof, on the user's own device."""
