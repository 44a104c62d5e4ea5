"""Samples of linear algebra and of Fourier transforms."""

from __future__ import annotations

import torch

from pytest_amp.rules.samples.sample import Build, Sample, Values

_of = Sample.of


def _square(v: Values) -> Sample:
    return _of(v.normal(4, 4))


def _symmetric(v: Values) -> Sample:
    return _of(v.positive_definite(4))


def _factor(v: Values) -> torch.Tensor:
    factor: torch.Tensor = torch.linalg.cholesky(v.positive_definite(4))
    return factor


def _reflectors(v: Values) -> tuple[torch.Tensor, torch.Tensor]:
    factors, scales = torch.geqrf(v.normal(5, 4))
    return factors, scales


def _lu_solve(v: Values) -> Sample:
    factors, pivots = torch.linalg.lu_factor(v.positive_definite(4))
    return _of(v.normal(4, 2), factors, pivots)


def _line(v: Values) -> Sample:
    return _of(v.normal(3, 8))


def _stft(v: Values, *, center: bool) -> Sample:
    keywords = {"window": v.uniform(16), "return_complex": True}
    return _of(v.normal(64), 16, **keywords, **({"center": True} if center else {}))


LINALG: dict[str, Build] = {
    "_lu_with_info": _square,
    "cholesky": _symmetric,
    "cholesky_inverse": lambda v: _of(_factor(v)),
    "cholesky_solve": lambda v: _of(v.normal(4, 2), _factor(v)),
    "geqrf": lambda v: _of(v.normal(5, 4)),
    "inverse": _symmetric,
    "linalg_cholesky": _symmetric,
    "linalg_cholesky_ex": _symmetric,
    "linalg_cond": _square,
    "linalg_cond.p_str": lambda v: _of(v.positive_definite(4), "fro"),
    "linalg_eig": _square,
    "linalg_eigh": _symmetric,
    "linalg_eigvals": _square,
    "linalg_eigvalsh": _symmetric,
    "linalg_householder_product": lambda v: _of(*_reflectors(v)),
    "linalg_inv": _symmetric,
    "linalg_inv_ex": _symmetric,
    # The default driver's last bits depend on the address of its workspace.
    "linalg_lstsq": lambda v: _of(v.normal(5, 3), v.normal(5, 2), driver="gels"),
    "linalg_matrix_rank": lambda v: _of(v.normal(4, 3), 0.1),
    "linalg_matrix_rank.atol_rtol_float": lambda v: _of(v.normal(4, 3), atol=0.1),
    "linalg_matrix_rank.atol_rtol_tensor": lambda v: _of(v.normal(4, 3), atol=v.uniform(1), rtol=v.uniform(1)),
    "linalg_matrix_rank.tol_tensor": lambda v: _of(v.normal(4, 3), v.uniform(1)),
    "linalg_matrix_sqrth": _symmetric,
    "linalg_qr": lambda v: _of(v.normal(4, 3)),
    "linalg_solve": lambda v: _of(v.positive_definite(4), v.normal(4, 2)),
    "linalg_svd": lambda v: _of(v.normal(4, 3)),
    "linalg_svdvals": lambda v: _of(v.normal(4, 3)),
    "linalg_tensorinv": lambda v: _of(v.positive_definite(6).reshape(2, 3, 6)),
    "linalg_tensorsolve": lambda v: _of(v.positive_definite(6).reshape(2, 3, 6), v.normal(2, 3)),
    "lu_solve": _lu_solve,
    "orgqr": lambda v: _of(*_reflectors(v)),
    "ormqr": lambda v: _of(*_reflectors(v), v.normal(5, 2)),
    "pinverse": lambda v: _of(v.normal(4, 3)),
    "qr": lambda v: _of(v.normal(4, 3)),
    "svd": lambda v: _of(v.normal(4, 3)),
    "trace": _square,
    "triangular_solve": lambda v: _of(v.normal(4, 2), v.positive_definite(4)),
}

FOURIER: dict[str, Build] = {
    **{
        f"fft_{name}": _line
        for name in ("fft", "fft2", "fftn", "hfft", "ifft", "ifft2", "ifftn", "ihfft", "irfft", "irfft2", "irfftn")
    },
    **{f"fft_{name}": _line for name in ("rfft", "rfft2", "rfftn")},
    "stft": lambda v: _stft(v, center=False),
    "stft.center": lambda v: _stft(v, center=True),
}
