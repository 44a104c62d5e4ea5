"""Graph networks of PyTorch Geometric, which sum messages with ``scatter_add`` and ``index_add``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import Batch, RealModel


def _gat() -> nn.Module:
    from torch_geometric.nn import GAT

    return GAT(in_channels=12, hidden_channels=16, num_layers=2, out_channels=4, heads=4, dropout=0.3, v2=True).train()


def _graph_of_classes() -> Batch:
    classes, edges = torch.arange(4).repeat(50), torch.randint(200, (2, 700))
    edges = edges[:, classes[edges[0]] == classes[edges[1]]]
    x = torch.randn(200, 12) + 2 * functional.one_hot(classes, 12)
    return {"x": x, "edges": edges[:, edges[0] != edges[1]], "classes": classes}


def _classes_of_nodes(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["x"], batch["edges"])
    return {"loss": functional.cross_entropy(logits, batch["classes"]), "logits": logits}


class GraphClassifier(nn.Module):
    """A GIN over nodes, the mean over each graph, and a linear layer."""

    def __init__(self) -> None:
        """Create three layers with BatchNorm and dropout."""
        from torch_geometric.nn import GIN

        super().__init__()
        self.nodes = GIN(in_channels=12, hidden_channels=16, num_layers=3, dropout=0.2, norm="batch_norm", jk="cat")
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, count: int) -> Tensor:
        """Return logits of shape (graphs, 2)."""
        from torch_geometric.nn import global_mean_pool

        logits: Tensor = self.out(global_mean_pool(self.nodes(x, edges), graph, count))
        return logits


def _several_graphs() -> Batch:
    graph = torch.arange(8).repeat_interleave(7)
    edges = torch.cat([torch.randint(7, (2, 20)) + 7 * index for index in range(8)], dim=1)
    return {"x": torch.randn(56, 12), "edges": edges, "graph": graph, "count": 8, "classes": torch.randint(2, (8,))}


def _classes_of_graphs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["x"], batch["edges"], batch["graph"], batch["count"])
    return {"loss": functional.cross_entropy(logits, batch["classes"]), "logits": logits}


def _near_pairs(positions: Tensor, molecule: Tensor) -> tuple[Tensor, Tensor]:
    """Return edges between atoms of one molecule and their lengths: SchNet's own search needs an extension."""
    same = (molecule[:, None] == molecule[None]) & ~torch.eye(len(molecule), dtype=torch.bool, device=molecule.device)
    edges = same.nonzero().T
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=1)


def _schnet() -> nn.Module:
    from torch_geometric.nn import SchNet

    return SchNet(
        hidden_channels=32, num_filters=32, num_interactions=2, num_gaussians=16, interaction_graph=_near_pairs
    ).train()


def _molecules() -> Batch:
    return {
        "atoms": torch.randint(1, 10, (24,)),
        "positions": (3 * torch.randn(24, 3)).requires_grad_(),
        "molecule": torch.arange(4).repeat_interleave(6),
        "energies": torch.randn(4, 1),
    }


def _energies(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    energies = model(batch["atoms"], batch["positions"], batch["molecule"])
    return {"loss": functional.mse_loss(energies.float(), batch["energies"]), "energies": energies}


_row = partial(RealModel, library="torch_geometric")

MODELS = (
    _row(
        name="gat",
        shows="softmax over neighbours, dropout of attention",
        build=_gat,
        steps=30,
        rate=1e-2,
        batch=_graph_of_classes,
        loss=_classes_of_nodes,
        selected=True,
        dtypes={"": "float32"},
    ),
    _row(
        name="gin",
        shows="sums over neighbours, BatchNorm, layers side by side, mean over graphs",
        build=GraphClassifier,
        batch=_several_graphs,
        loss=_classes_of_graphs,
    ),
    _row(
        name="schnet",
        shows="filters of distances, gradients of positions",
        build=_schnet,
        batch=_molecules,
        loss=_energies,
    ),
)
