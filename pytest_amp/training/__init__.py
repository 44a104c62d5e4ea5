"""Short trainings in mixed precision compared with float32: the loss band, float32 state, small real tasks."""

from pytest_amp.training.band import WIDTH, Band, band_of, make_band
from pytest_amp.training.comparison import TooLittleSeen, check_training
from pytest_amp.training.state import Rounded, rounded_parameters, rounded_state
from pytest_amp.training.tasks import Task, accuracy, characters, images
from pytest_amp.training.trajectory import Setup, TrainingIteration, TrainingStep, Trajectory, TrajectoryStep, run

__all__ = [
    "WIDTH",
    "Band",
    "Rounded",
    "Setup",
    "Task",
    "TooLittleSeen",
    "TrainingIteration",
    "TrainingStep",
    "Trajectory",
    "TrajectoryStep",
    "accuracy",
    "band_of",
    "characters",
    "check_training",
    "images",
    "make_band",
    "rounded_parameters",
    "rounded_state",
    "run",
]
