"""Training in mixed precision: it converges as float32 does, and keeps its state in float32 where it must.

Short, seeded trajectories of small real tasks, held against a band of float32 runs that rounding disturbs
(docs/training.md); GradScaler by itself is the family ``scaler``.
"""

from pytest_amp.families import Family

FAMILY = Family("training")
