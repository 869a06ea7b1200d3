"""Backward pass of a SwiGLU MLP from saved activations: gradients of its input and its three weights."""

import torch

FULL = {"BATCH_SIZE": 64, "SEQ_LEN": 128, "HIDDEN_SIZE": 16384, "INTERMEDIATE_SIZE": 53248}
SMALL = {"BATCH_SIZE": 3, "SEQ_LEN": 7, "HIDDEN_SIZE": 32, "INTERMEDIATE_SIZE": 80}
# Draws besides those of make_inputs that a solution must get right, each with why it is legal.
EDGES = {"large_gates": "gates beyond 88 on both sides, where exp of float32 overflows: no gate is bounded"}


def make_inputs(workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one draw, bfloat16.

    grad_output and x [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; gate_output, up_output and activated_gate [BATCH_SIZE,
    SEQ_LEN, INTERMEDIATE_SIZE]; gate_weight and up_weight [INTERMEDIATE_SIZE, HIDDEN_SIZE]; down_weight
    [HIDDEN_SIZE, INTERMEDIATE_SIZE].
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    rows = workload["BATCH_SIZE"], workload["SEQ_LEN"]
    narrow, wide = workload["HIDDEN_SIZE"], workload["INTERMEDIATE_SIZE"]
    grad_output, x = normal(*rows, narrow), normal(*rows, narrow)
    # The saved activations are independent of x and of each other, so that each of them must be read.
    gate_output, up_output, activated_gate = normal(*rows, wide), normal(*rows, wide), normal(*rows, wide)
    gate_weight, up_weight = normal(wide, narrow) / narrow**0.5, normal(wide, narrow) / narrow**0.5
    down_weight = normal(narrow, wide) / wide**0.5
    return grad_output, x, gate_output, up_output, activated_gate, gate_weight, up_weight, down_weight


def make_edge(name: str, workload: dict, device: str) -> tuple[torch.Tensor, ...]:
    """Fresh inputs of one of EDGES, with the shapes and dtypes of make_inputs."""
    inputs = make_inputs(workload, device)
    if name == "large_gates":
        inputs[2].mul_(64)
    return inputs


def reference(
    grad_output: torch.Tensor,
    x: torch.Tensor,
    gate_output: torch.Tensor,
    up_output: torch.Tensor,
    activated_gate: torch.Tensor,
    gate_weight: torch.Tensor,
    up_weight: torch.Tensor,
    down_weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients of (SiLU(x @ gate_weight.T) * (x @ up_weight.T)) @ down_weight.T, in the dtype of grad_output.

    grad_x [BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE]; grad_gate_weight and grad_up_weight [INTERMEDIATE_SIZE,
    HIDDEN_SIZE]; grad_down_weight [HIDDEN_SIZE, INTERMEDIATE_SIZE]. Every step rounds to that dtype; the
    backward of SiLU is one step.
    """
    compute = torch.promote_types(grad_output.dtype, torch.float32)
    grad_product = grad_output @ down_weight
    grad_down_weight = grad_output.flatten(0, 1).T @ (activated_gate * up_output).flatten(0, 1)
    grad_activated, grad_up = grad_product * up_output, grad_product * activated_gate
    gate = gate_output.to(compute)
    sigmoid = torch.sigmoid(gate)
    grad_gate = (grad_activated.to(compute) * (sigmoid * (1 + gate * (1 - sigmoid)))).to(grad_output.dtype)
    grad_gate_weight = grad_gate.flatten(0, 1).T @ x.flatten(0, 1)
    grad_up_weight = grad_up.flatten(0, 1).T @ x.flatten(0, 1)
    grad_x = grad_gate @ gate_weight + grad_up @ up_weight
    return grad_x, grad_gate_weight, grad_up_weight, grad_down_weight
