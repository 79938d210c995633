from typing import Any

from torch import Tensor

from dynabound.optim._scalars import Scalars

LEVELS: tuple[str, ...]
OPENMP: int
ENTRY_SIZE: int

def connect(tensor_type: type, parameter_type: type, exchange: object) -> None: ...
def scan(
    p: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    vmax: list[Tensor],
    steps: list[Tensor],
    gpus: bool = False,
    capture: bool = False,
) -> tuple[list[tuple[int, Any] | None], bytes]: ...
def update(level: int, threads: int, entries: bytes, scalars: Scalars) -> None: ...

stream = update
