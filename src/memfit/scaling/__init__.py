"""Several devices and several machines: one process for each, the results of one large device."""
