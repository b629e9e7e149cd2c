"""The side of the workload: the recorder of a rank and what it needs of its process and device."""
