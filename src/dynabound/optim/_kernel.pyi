from torch import Tensor

from dynabound.optim._scalars import Scalars

LEVELS: tuple[str, ...]
OPENMP: int

def connect(tensor_type: type, parameter_type: type, exchange: object) -> None: ...
def scan(
    p: list[Tensor], g: list[Tensor], m: list[Tensor], v: list[Tensor], vmax: list[Tensor], steps: list[Tensor]
) -> list[tuple[int, int] | None]: ...
def update(
    level: int,
    threads: int,
    p: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    vmax: list[Tensor],
    steps: list[Tensor],
    scalars: Scalars,
) -> None: ...

stream = update
