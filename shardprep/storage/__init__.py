"""The edge: the only place that talks to disks and object stores."""
