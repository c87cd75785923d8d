"""PyTorch Geometric: plain layers on a graph that networkx ships, Zachary's karate club.

    python examples/frameworks/geometric_layers.py

Convolutions by attention, by normalised neighbours and by samples, and pooling over a batch of two graphs.
"""

import networkx
import torch
import torch.nn.functional as F
from beside_cpu import Steps, compare
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool
from torch_geometric.utils import from_networkx

import torch_xla


def club() -> tuple[Data, torch.Tensor]:
    graph = networkx.karate_club_graph()
    sides = torch.tensor([graph.nodes[node]["club"] == "Officer" for node in graph]).long()
    for _, attributes in graph.nodes(data=True):
        attributes.clear()
    for *_, attributes in graph.edges(data=True):
        attributes.clear()
    return Data(x=torch.eye(len(sides)), edge_index=from_networkx(graph).edge_index), sides


class Network(nn.Module):
    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.first = GCNConv(nodes, 16)
        self.second = GATConv(16, 8, heads=2)
        self.third = SAGEConv(16, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, graphs: Data) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(graphs.x, graphs.edge_index).relu()
        x = self.second(x, graphs.edge_index).relu()
        x = self.third(x, graphs.edge_index).relu()
        return self.last(x), global_mean_pool(x, graphs.batch, size=2)


def train(device: str, steps: Steps) -> dict[str, float]:
    graph, sides = club()
    graphs = Batch.from_data_list([graph, graph]).to(device)
    answers = sides.repeat(2).to(device)
    model = Network(len(sides)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        found, pooled = model(graphs)
        loss = F.cross_entropy(found, answers) + 0.01 * pooled.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        steps.ended(loss)
    with torch.no_grad():
        found, _ = model.eval()(graphs)
    return {"accuracy": (found.argmax(-1) == answers).float().mean().item()}


if __name__ == "__main__":
    compare(train, tolerance=1e-4)
