"""An optimizer with train() and eval(), as schedule-free ones have."""

import torch


class TwoModes(torch.optim.SGD):
    """SGD at weights that are an eighth larger for training than for evaluation."""

    def __init__(self, params, lr=0.1, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.param_groups[0]["training"] = False

    @torch.no_grad()
    def _switch(self, training):
        (group,) = self.param_groups
        if group["training"] != training:
            for param in group["params"]:
                param.add_(0.125 if training else -0.125)
            group["training"] = training

    def train(self):
        self._switch(True)

    def eval(self):
        self._switch(False)

    def step(self, closure=None):
        assert self.param_groups[0]["training"], "not in training mode"
        return super().step(closure)
