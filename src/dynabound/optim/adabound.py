"""AdaBound and AMSBound: hyper-parameters, state, and the only ``step()``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler: over a second
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from typing_extensions import Unpack

from dynabound._rule import DEFAULTS
from dynabound.bounds import Bounds
from dynabound.optim import _state_dict, _validate
from dynabound.optim._dispatch import BackendCall, dispatch
from dynabound.optim._scalars import CurrentBounds, current_bounds
from dynabound.optim._state import Lists, LossScaling, eightbit, is_probe, new_state
from dynabound.optim._state.release import is_released
from dynabound.optim._validate import Options, StateDtype, normalize

if TYPE_CHECKING:
    from dynabound.optim.training import StepInBackward

__all__ = ["AMSBound", "AdaBound", "AdaBoundW", "adabound"]


class AdaBound(Optimizer):
    r"""Adam whose learning rates are clipped between two bounds that converge to SGD's learning rate.

    With g the gradient and t the parameter's own step count::

        m_t = β₁·m_{t−1} + (1 − β₁)·g_t
        v_t = β₂·v_{t−1} + (1 − β₂)·g_t²
        η_t = clip(α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v_t + ε), α*·l(t), α*·u(t))
        x_{t+1} = x_t − η_t·m_t

    where α is ``lr`` and α* is ``final_lr``, multiplied by the ratio of the current ``lr`` to the ``lr`` with which the
    parameter's group was added; l and u are the ``bounds``, 1 − 1/(γt+1) and 1 + 1/(γt) by default. This is what the
    authors' released code does. ``debias=False, sqrt_decay=True, eps=0`` is exactly the paper's Algorithm 2, and with
    ``amsbound=True`` its Algorithm 3.

    Args:
        params: parameters, named parameters, or dicts that define param groups, as in ``torch.optim``.
        lr: α, the learning rate of Adam, with which training begins. A float, or a tensor of one element.
        betas: β₁ and β₂, the decay rates of the two moments.
        final_lr: α*, the learning rate of SGD, with which training ends.
        gamma: γ, the speed at which the bounds converge; the steps are close to SGD when t is well over 1/γ.
        eps: ε, added to √v_t. With 0, an element whose gradients were all 0 stays unchanged.
        weight_decay: L2 penalty, added to the gradient as ``weight_decay * param``.
        amsbound: divide by the largest v_t so far (AMSBound).
        bounds: a family of ``dynabound.bounds`` ("harmonic", "exponential", "linear", ("constant", lower, upper)),
            or a callable ``step -> (lower, upper)``, which is not saved in checkpoints.
        decoupled_weight_decay: multiply the parameter by ``1 - lr * weight_decay`` instead, as AdamW does. "fully": by
            ``1 - weight_decay * lr / base_lr``, where ``base_lr`` is the group's first ``lr``: the decay does not
            depend on ``lr``, only on its schedule.
        maximize: maximize the objective instead of minimizing it.
        foreach: use torch's multi-tensor functions. None: on accelerators, and for tensor subclasses.
        fused: use the C kernel, or on a GPU the Triton kernel. None: the C kernel, for dense tensors, if it was built.
        capturable: keep the step count on the parameter's device, so that the step can be captured in a graph.
        differentiable: let autograd record the step.
        debias: apply Adam's bias corrections.
        sqrt_decay: divide the clipped learning rate by √t.
        beta1_decay: λ, for β₁ₜ = β₁λ^(t−1), or "harmonic", for β₁ₜ = β₁/t.
        box: (low, high), to project every parameter onto [low, high].
        state_dtype: dtype of the moments, or a pair for the first and the second. None: the parameter's, and float32
            for bfloat16 and float16 parameters. Second moments in bfloat16 are rounded stochastically. "8bit": groups
            of 32 numbers with a common scale, for matrices and larger tensors with 4,096 elements or more.
        rounding: of bfloat16 parameters: "nearest", or "stochastic", which lets them learn from updates that are too
            small for "nearest".
        release: free the second moments when the bounds have met: with 0 when they are equal, with a larger number when
            their geometric mean, which then is the learning rate, differs from each by at most this part.

    Example:
        >>> import torch
        >>> from dynabound import AdaBound
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = AdaBound(model.parameters(), lr=1e-3, final_lr=0.1)
        >>> model(torch.ones(3)).backward()
        >>> optimizer.step()

    References:
        Luo, Xiong, Liu, Sun: Adaptive Gradient Methods with Dynamic Bound of Learning Rate, ICLR 2019.
    """

    _warned = False
    _in_backward: StepInBackward | None = None

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsbound: bool = False,
        *,
        bounds: Bounds = "harmonic",
        decoupled_weight_decay: bool | Literal["fully"] = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        debias: bool = True,
        sqrt_decay: bool = False,
        beta1_decay: float | str = 1.0,
        box: tuple[float, float] | None = None,
        state_dtype: StateDtype = None,
        rounding: str = "nearest",
        release: float | None = None,
    ) -> None:
        arguments = locals()
        super().__init__(params, normalize({name: arguments[name] for name in DEFAULTS}))
        if isinstance(self.defaults["lr"], Tensor):  # not the groups' own, which a scheduler changes in place
            self.defaults["lr"] = self.defaults["lr"].detach().clone()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a param group; its bounds scale with its own learning rate.

        A group with its own ``lr`` and without ``final_lr`` gets ``final_lr`` times its ``lr`` over the default ``lr``.
        Nothing is added if a hyper-parameter is invalid.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but is a {type(param_group).__name__}")
        checked = normalize({**self.defaults, **param_group})
        if "lr" in param_group and "final_lr" not in param_group:
            checked["final_lr"] = _validate.scale_final_lr(checked, self.defaults["lr"])
        if checked["differentiable"] != self.defaults["differentiable"]:
            raise ValueError(f"differentiable={checked['differentiable']}: must be the same for all groups")
        super().add_param_group(param_group)
        try:
            _validate.check_params(self.param_groups[-1])
        except (RuntimeError, ValueError):
            self.param_groups.pop()
            raise
        param_group.update(checked)
        lr = checked["lr"]
        param_group["base_lr"] = lr.detach().item() if isinstance(lr, Tensor) else lr

    def bounds_now(self) -> list[CurrentBounds]:
        """The bounds of every param group's next step, with the rates they derive from, and how close to SGD they are.

        >>> import torch
        >>> from dynabound import AdaBound
        >>> optimizer = AdaBound([torch.zeros(1)], lr=1e-3, final_lr=0.1, gamma=1.0)
        >>> optimizer.bounds_now()
        [CurrentBounds(step=1, lower=0.05, upper=0.2, lr=0.001, base_lr=0.001, final_lr=0.1, sgd_share=0.5)]
        """

        def next_step(group: dict[str, Any]) -> int:
            return 1 + max([int(self.state[p].get("step", 0)) for p in group["params"] if p in self.state], default=0)

        return [current_bounds(group, next_step(group)) for group in self.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The state as primitives and tensors; a callable ``bounds`` is saved as None."""
        state_dict = super().state_dict()
        for group in state_dict["param_groups"]:
            if callable(group.get("bounds")):
                group["bounds"] = None
        return state_dict

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this class, of another AdaBound, or of torch's Adam: see docs/migration.md.

        The tensors are copied, and the moments keep their precision; ``Optimizer.load_state_dict`` would round them to
        the parameter's dtype. The update rule is the checkpoint's, including ``amsbound`` and the kind of weight decay;
        ``foreach``, ``fused``, ``capturable`` and ``differentiable`` stay as constructed.
        """
        restored: dict[Tensor, dict[str, Any]] = {}

        def translate(_: Optimizer, foreign: dict[str, Any]) -> dict[str, Any]:
            ours = _state_dict.translate(foreign, self.param_groups)
            restored.update(_state_dict.restore(ours, self.param_groups))  # any error is raised before the first write
            return ours

        def assign(_: Optimizer) -> None:
            for param, entry in restored.items():
                others = {name: value for name, value in self.state[param].items() if name not in entry}
                self.state[param] = {**entry, **copy.deepcopy(others)}

        with (
            self.register_load_state_dict_pre_hook(translate),
            self.register_load_state_dict_post_hook(assign, prepend=True),
        ):
            super().load_state_dict(state_dict)

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Any],
        max_exp_avg_sqs: list[Any],
        steps: list[Tensor],
    ) -> None:
        """Append the tensors of every parameter with a gradient. torch.compile relies on the name and the signature."""
        amsbound, release = group["amsbound"], group["release"] is not None
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self.state[param]
            if "step" not in state:
                _validate.check_tensors(group, param, grad)
                state.update(new_state(group, param))
            params.append(param)
            grads.append(grad)
            exp_avgs.append(state["exp_avg"])
            steps.append(state["step"])
            if (release or "exp_avg_sq" not in state) and is_released(group, param, state):
                exp_avg_sqs.append(None)
                max_exp_avg_sqs += [None] * amsbound
                continue
            exp_avg_sqs.append(state["exp_avg_sq"])
            if amsbound:
                if "max_exp_avg_sq" not in state:  # the first step, or a warm start from plain Adam
                    state["max_exp_avg_sq"] = eightbit.unpack(state["exp_avg_sq"], param, True).clone()
                max_exp_avg_sqs.append(state["max_exp_avg_sq"])

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; if anything is invalid, raise and update none.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        _check_capture(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        eager = not torch.compiler.is_compiling()
        if eager and not self._warned:
            self._warned = _validate.warn_about_schedules(self.param_groups)
        first = eager and not self.state
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if self._in_backward is not None:
                self._in_backward.end_step()
            calls = self._prepare(self.param_groups)
            if first and is_probe(self.param_groups):
                return loss
            for backend, arguments in calls:
                backend(*arguments)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves the gradients scaled and sets ``grad_scale`` and ``found_inf``, as in torch."""
        return all([group["fused"] for group in self.param_groups])

    def _prepare(self, groups: list[dict[str, Any]]) -> list[BackendCall]:
        """The backend calls of a step of ``groups``; where that fails, no parameter has got a new state."""
        calls: list[BackendCall] = []
        known = len(self.state)
        rescan = any([callable(group["bounds"]) for group in groups])
        scaling = LossScaling(getattr(self, "grad_scale", None), getattr(self, "found_inf", None))
        try:
            for group in groups:
                lists: Lists = ([], [], [], [], [], [])
                self._init_group(group, *lists)
                made = dispatch(lists, group, rescan, scaling)
                if made and any([exp_avg_sq is None for exp_avg_sq in lists[3]]):
                    made.append((self._release, (lists,)))
                calls += made
        except Exception:
            while len(self.state) > known:
                self.state.popitem()
            raise
        return calls

    def _release(self, lists: Lists) -> None:
        """Free the second moments that the step has not used."""
        for param, exp_avg_sq in zip(lists[0], lists[3], strict=True):
            for name in ("exp_avg_sq", "max_exp_avg_sq") if exp_avg_sq is None else ():
                self.state[param].pop(name, None)


class AMSBound(AdaBound):
    """AdaBound that divides by the largest second moment so far: ``AdaBound(..., amsbound=True)``.

    Example:
        >>> import torch
        >>> from dynabound import AMSBound
        >>> optimizer = AMSBound(torch.nn.Linear(3, 1).parameters(), lr=1e-3, final_lr=0.1)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsbound: bool = True,
        **options: Unpack[Options],
    ) -> None:
        if not amsbound:
            raise ValueError(f"amsbound={amsbound!r}: must be True for AMSBound; use AdaBound")
        super().__init__(params, lr, betas, final_lr, gamma, eps, weight_decay, amsbound, **options)


class AdaBoundW(AdaBound):
    """AdaBound with AdamW's weight decay: ``AdaBound(..., decoupled_weight_decay=True)``.

    Example:
        >>> import torch
        >>> from dynabound import AdaBoundW
        >>> optimizer = AdaBoundW(torch.nn.Linear(3, 1).parameters(), lr=1e-3, weight_decay=1e-2)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        final_lr: float = 0.1,
        gamma: float = 1e-3,
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsbound: bool = False,
        **options: Unpack[Options],
    ) -> None:
        if not options.setdefault("decoupled_weight_decay", True):
            raise ValueError("decoupled_weight_decay=False: must be True for AdaBoundW; use AdaBound")
        super().__init__(params, lr, betas, final_lr, gamma, eps, weight_decay, amsbound, **options)


def adabound(  # noqa: D417 - the others are AdaBound's
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    decoupled_weight_decay: bool | Literal["fully"] = False,
    *,
    amsbound: bool,
    beta1: float,
    beta2: float,
    lr: float | Tensor,
    final_lr: float,
    gamma: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    base_lr: float | None = None,
    bounds: Bounds = "harmonic",
    debias: bool = True,
    sqrt_decay: bool = False,
    beta1_decay: float | str = 1.0,
    box: tuple[float, float] | None = None,
    rounding: str = "nearest",
) -> None:
    """One AdaBound step on lists of tensors, in place: :meth:`AdaBound.step` as a function.

    The names and their order are those of ``torch.optim.functional.adam``; the rest is explained at :class:`AdaBound`.
    Call it under ``torch.no_grad()``, unless with ``differentiable=True``.

    Args:
        params: what to update.
        grads: gradients; never changed.
        exp_avgs: first moments.
        exp_avg_sqs: second moments.
        max_exp_avg_sqs: largest second moments so far for AMSBound, otherwise an empty list.
        state_steps: 0-dimensional tensors, the number of steps made for each parameter; this function increments them.
            The C kernel needs int64.
        grad_scale: the factor of the gradients, of GradScaler.
        found_inf: a tensor; if it is not 0, nothing is updated.
        has_complex: not used; complex tensors are recognised.
        base_lr: the learning rate that belongs to ``final_lr``, when a schedule changes ``lr``. None: ``lr``.

    Example:
        >>> import torch
        >>> from dynabound.optim.adabound import adabound
        >>> x, m, v, t = torch.ones(2), torch.zeros(2), torch.zeros(2), torch.zeros((), dtype=torch.int64)
        >>> adabound([x], [torch.tensor([1.0, -1.0])], [m], [v], [], [t], amsbound=False, beta1=0.9, beta2=0.999,
        ...          lr=1e-3, final_lr=0.1, gamma=1e-3, weight_decay=0, eps=1e-8, maximize=False)
        >>> x, t
        (tensor([0.9990, 1.0010]), tensor(1))
    """
    group = {**DEFAULTS, **locals(), "betas": (beta1, beta2), "base_lr": float(lr) if base_lr is None else base_lr}
    lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
    for backend, tensors in dispatch(lists, group, callable(bounds), LossScaling(grad_scale, found_inf)):
        backend(*tensors)


# Renamed in torch 2.11.
_check_capture: Callable[[Optimizer], None] = (
    getattr(Optimizer, "_accelerator_graph_capture_health_check", None) or Optimizer._cuda_graph_capture_health_check
)
