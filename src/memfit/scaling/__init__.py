"""Several devices and several machines: the weights that one large device would have given."""
