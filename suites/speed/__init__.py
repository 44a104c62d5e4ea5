"""Speed of mixed precision: it does no harm, and gains what was calibrated on the card.

Each check times the same work with and without autocast, in turn, and needs the device for itself. A CPU is timed with
--amp-speed=report only, and compared with nothing.
"""

from pytest_amp.families import REAL, Family

FAMILY = Family("speed", kinds=REAL)
