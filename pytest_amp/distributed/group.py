"""Ranks of a process group, as the test process sees them: it asks all, and waits for each for a limited time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_amp.child_process.protocol import Children, StartFailed
from pytest_amp.failure import AmpFailure
from pytest_amp.run import workers

#: Seconds in which the ranks must start, answer one request, and follow a failed rank.
START, LIMIT, GRACE = 120.0, 60.0, 5.0
#: Back end of a device type's process group; torch's own choice (``Backend.default_device_backend_map``).
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def unavailable(device_type: str) -> str | None:
    """Return why this torch cannot create a process group for ``device_type``; None if it can."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return f"torch {torch.__version__} is built without torch.distributed"
    backend = BACKENDS.get(device_type)
    if backend is None:
        return f"no back end of process groups is known for {device_type}"
    if not getattr(dist, f"is_{backend}_available", lambda: True)():
        return f"torch {torch.__version__} is built without {backend}"
    return None


class RanksFailed(AmpFailure):
    """Failure of ranks: one raised, died or did not answer in time; the message names it and where the rest are."""


class RankGroup:
    """Group of ``size`` processes, started at the first request, and again after one was lost."""

    def __init__(
        self,
        device_type: str,
        *,
        size: int = 2,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        """Configure the ranks: ``path`` is their module search path, and they import ``modules`` before torch.

        torch is seeded with ``seed`` before each request.
        """
        self.device_type, self.size, self.seed = device_type, size, seed
        self._modules, self._path = list(modules), [entry for entry in path if entry]
        self._running: _Running | None = None
        #: Number of times that the processes were started.
        self.starts = 0

    def ask(
        self,
        program: Callable[..., Any],
        settings: Mapping[str, Any] | None = None,
        *,
        limit: float = LIMIT,
    ) -> list[Any]:
        """Return the answers of ``program``, a function of a module, on each rank, in order; ``settings`` go as JSON.

        Raises RanksFailed if a rank raises, dies, or has no answer after ``limit`` seconds.
        """
        name = f"{program.__module__}:{program.__qualname__}"
        if self._running is None:
            self.starts += 1
            self._running = _Running(self)
        running = self._running
        try:
            running.send({"program": name, "settings": dict(settings or {})})
            answers = running.answers(program.__qualname__, limit)
        except RanksFailed:
            if running.lost:
                self._running = None
            raise
        return [answer["value"] for answer in answers]

    def close(self) -> None:
        """End the processes."""
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def settings(self) -> dict[str, Any]:
        """Return the settings of each rank."""
        return {
            "backend": BACKENDS[self.device_type],
            "device": self.device_type,
            "modules": self._modules,
            "path": self._path or sys.path,
            "seed": self.seed,
            # Longer than the test process waits, whose error says more than that of the collective.
            "timeout": 10 * max(LIMIT, START),
        }


class _Running:
    """Process of the launcher, with a connection to each rank."""

    def __init__(self, group: RankGroup) -> None:
        self._size = group.size
        self.lost = False
        self.children = Children(
            partial(_command, group.size),
            group.settings(),
            path=group.settings()["path"],
            environment=_environment(group.device_type),
            count=group.size,
        )
        try:
            self.children.accept(START)
        except StartFailed as failed:
            self._lose(f"the launcher {failed}: not all ranks were there")
        self.answers("starting", START)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send one request to all ranks."""
        for number in self.children.send(request):
            self._lose(f"rank {number} of {self._size} has gone")

    def answers(self, what: str, limit: float) -> list[Any]:
        """Return one answer of each rank, in order."""
        waiting = list(range(self._size))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit
        errors: dict[int, str] = {}
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, waiting = self.children.waiting(waiting, left)
            for number in ready:
                answer = self.children.receive(number)
                if answer is None:
                    self._lose(f"rank {number} of {self._size} died in {what}", now=self._ending())
                elif "error" in answer:
                    errors[number] = answer["error"]
                    # The remaining ranks may be in a collective that this rank will never enter.
                    deadline = min(deadline, time.monotonic() + GRACE)
                answers[number] = answer
        if errors:
            raised = "; ".join(f"rank {number}: {text}" for number, text in sorted(errors.items()))
            if waiting:
                self._lose(f"{what} raised on {len(errors)} of {self._size} ranks", now=raised)
            raise RanksFailed(f"{what} raised on {len(errors)} of {self._size} ranks", now=raised)
        if waiting:
            late = ", ".join(str(number) for number in sorted(waiting))
            done = ", ".join(str(number) for number in sorted(answers)) or "none"
            self._lose(
                f"{what}: rank {late} of {self._size} has no answer after {limit:g} s (answered: {done})",
                now=self._where(waiting),
                likely="a rank waits in a collective that another one never enters, or enters in another order",
            )
        return [answers[number] for number in sorted(answers)]

    def _where(self, ranks: Sequence[int]) -> str:
        """Return the current function of each of ``ranks``, from the stack that its own interpreter writes."""
        for number in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.children.pids[number], signal.SIGUSR1)
        time.sleep(0.5)
        return "; ".join(f"rank {number} is in {_top(self._stack(number))}" for number in sorted(ranks))

    def _stack(self, number: int) -> str:
        path = self.children.folder / f"stack{number}"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def _ending(self) -> str:
        """Return how the launcher ended, and its last output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.children.process.wait(GRACE)
        text = self.children.output()
        # The launcher's own report of a rank's exit.
        codes = re.findall(r"exitcode\s*: (-?\d+)", text)
        return f"exit status {codes[-1]}" if codes else " ".join(text.split())[-300:] or "nothing was written"

    def _lose(self, what: str, *, now: str | None = None, likely: str | None = None) -> Any:
        """End the processes and raise RanksFailed."""
        self.lost = True
        now = now or self._ending_or_none()
        self.end()
        raise RanksFailed(what, now=now, likely=likely)

    def _ending_or_none(self) -> str | None:
        return self._ending() if self.children.process.poll() is not None else None

    def end(self) -> None:
        """End all processes. Lost ranks may be in a collective and read no requests: they are killed."""
        # The launcher only waits for the end of the ranks, which takes it seconds.
        self.children.end(0 if self.lost else GRACE, 0.2 if self.children.pids else GRACE)
        self.children.clean_up()


def _command(size: int, folder: Path) -> list[str]:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={size}", f"--log-dir={folder}"]
    # The machine's own name need not resolve.
    return [*launcher, "--local-addr=127.0.0.1", "-m", "pytest_amp.distributed.rank"]


def _environment(device_type: str) -> dict[str, str]:
    defaults = {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        defaults |= {f"{backend}_SOCKET_IFNAME": "lo" for backend in ("GLOO", "NCCL")}
    environment = {name: value for name, value in defaults.items() if name not in os.environ}
    return {**environment, **(workers.callers_gpus() if device_type == "cuda" else {})}


def _top(stack: str) -> str:
    """Return the innermost function of a stack, and the innermost one outside of torch."""
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    if not frames:
        return "an unknown place (it wrote no stack)"
    top = next((frame for frame in frames if f"{os.sep}torch{os.sep}" not in frame[0]), frames[0])
    named = [f"{function} ({Path(file).name}:{line})" for file, line, function in dict.fromkeys([frames[0], top])]
    return ", called by ".join(named)
