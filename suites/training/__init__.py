"""What a training in mixed precision promises: it goes where float32 goes, and keeps in float32 what must be.

Short, seeded trajectories of small real tasks, held against a band of float32 runs that rounding disturbs
(docs/training.md); GradScaler by itself is the family ``scaler``.
"""

from pytest_amp.families import Family

FAMILY = Family("training")
