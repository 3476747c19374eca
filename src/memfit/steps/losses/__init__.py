"""Any function that returns a loss, as a step: its gradients in whole batches or parts, rematerialised or not."""
