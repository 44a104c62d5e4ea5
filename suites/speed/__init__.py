"""What mixed precision promises of speed: on a GPU that computes the dtype in hardware, it does no harm.

Each check times the same work with and without autocast, in turn, and needs the device for itself.
"""

from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("speed", kinds=frozenset({DeviceKind.ACCELERATOR}))
