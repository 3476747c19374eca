"""Recording a step's allocations in an isolated process."""
