"""Training in mixed precision: it converges as float32 does, and keeps its state in float32 where it must.

Short, seeded trajectories of small real tasks are compared with a band of float32 runs perturbed by rounding-sized
noise (docs/lab/training.md); the family ``scaler`` checks GradScaler by itself.
"""

from pytest_amp.families import Family

FAMILY = Family("training")
