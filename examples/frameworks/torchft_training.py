"""Training that a lost process does not end: torchft's replicas on `xla`, killed at random while they train.

    python examples/frameworks/torchft_training.py --replicas 4 --kills 100 [--way localsgd]

Needs `pip install torchft`. Each replica is a process with a runtime of its own; torchft's lighthouse decides which of
them take part in a step. A replica is killed by SIGKILL at a random moment and started anew: the others go on without
it, and it comes back with the state of one of them. Every step trains on the same rows, divided over those who take
part, so the losses are those of one process that was never killed.

With `--way hsdp` a replica is two processes of `torchrun`, which `fully_shard` the model. One of the two is killed, and
`torchrun` ends the other.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torchft.coordination import LighthouseServer
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

import torch_xla  # noqa: F401

ROWS = 24  # of one step: divisible among one to four replicas of one or two processes
SHARDS = 2  # processes of a replica, with `--way hsdp`
END = "end"  # of the file whose presence ends the training
WAYS = ("ddp", "hsdp", "localsgd", "diloco")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))


def rows(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of all replicas in a step, and their classes."""
    x = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(step))
    return x, x[:, :4].argmax(1)


def alone(steps: int) -> list[float]:
    """Train in one process on the CPU, and return the loss of each step."""
    model, losses = network(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = rows(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Averaged(DistributedDataParallel):
    """torchft's, whose own hook fails in a step that has lost a peer already: it expects a future of the manager."""

    @staticmethod
    def _comm_hook(state: Manager, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        state.allreduce(buffer).wait()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


class Replica:
    """One replica: the model, and the manager that knows the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.shards, self.rounds = 0, 1, 0
        self.process = os.getpid()
        self.model = network()
        if options.way == "hsdp":
            self.shard()
        else:
            self.model.to("xla")
            self.store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(self.store.port))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
            load_state_dict=self.load,
            state_dict=self.state,
            min_replica_size=1,
            use_async_quorum=False,
            timeout=timedelta(seconds=8),
            rank=self.rank,
            world_size=self.shards,
            store_addr=os.environ["MASTER_ADDR"],
            store_port=int(os.environ["MASTER_PORT"]),
            lighthouse_addr=options.lighthouse,
            replica_id=f"replica_{options.replica}",
            hostname="localhost",
        )

    def shard(self) -> None:
        """Divide the model among the processes that `torchrun` has started for this replica."""
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("xla")
        self.rank, self.shards = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.process = os.getppid()
        self.store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        mesh = init_device_mesh("xla", (self.shards,))
        self.model.to("xla")
        for part in (*self.model, self.model):
            fully_shard(part, mesh=mesh)
        for part in self.model.modules():
            if isinstance(part, FSDPModule):
                part.set_all_reduce_hook(lambda gradients: self.manager.allreduce(gradients).wait())

    def state(self) -> dict[str, Any]:
        """Return what the process of another replica needs that has the same shard."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def is_told_to_end(self) -> bool:
        """Return whether the training has lasted long enough. A step takes a while, as a larger model's does."""
        time.sleep(0.05)
        self.rounds += 1
        answer = f"whether round {self.rounds} ends it"  # the processes of a replica end together
        if self.rank == 0:
            self.store.set(answer, str(Path(self.options.out).with_name(END).exists()))
        return bool(self.store.get(answer) == b"True")

    def tell(self, **values: Any) -> None:
        """Append a line to the file of this replica."""
        with open(self.options.out, "a") as out:
            out.write(json.dumps({"time": time.time(), "process": self.process, **values}) + "\n")

    def train_together(self) -> None:
        """Average the gradients in each step, by torchft's `DistributedDataParallel`."""
        model = Averaged(self.manager, self.model) if self.shards == 1 else self.model
        optimizer = OptimizerWrapper(self.manager, self.optimizer)
        while not self.is_told_to_end():
            optimizer.zero_grad()  # meets the others: who was away gets their state here
            step, count = self.manager.current_step(), self.manager.num_participants()
            place = self.manager.participating_rank()
            assert place is not None  # a quorum before the step lets all take part
            place, parts = place * self.shards + self.rank, count * self.shards
            x, y = (part.chunk(parts)[place].to("xla") for part in rows(step))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if self.manager.current_step() > step:
                self.tell(step=step, replicas=parts, place=place, loss=loss.item())

    def train_apart(self) -> None:
        """Train apart, and average every four steps: the parameters, or what they moved by."""
        if self.options.way == "localsgd":
            meeting: Any = LocalSGD(self.manager, self.model, self.optimizer, sync_every=4)
        else:
            outer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.5, nesterov=True)
            meeting = DiLoCo(self.manager, [self.model], self.optimizer, outer, sync_every=4)
        step = 0
        with meeting:
            while not self.is_told_to_end():
                round_ = self.manager.current_step()
                x, y = rows(1000 * int(self.options.replica) + step)
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x.to("xla")), y.to("xla"))
                loss.backward()
                self.optimizer.step()
                step += 1
                if self.manager.current_step() > round_:
                    weights = torch.cat([each.detach().cpu().flatten() for each in self.model.parameters()])
                    count = self.manager.num_participants()
                    round_ = self.manager.current_step() - 1  # others' round, where it came back in this one
                    self.tell(step=round_, replicas=count, loss=loss.item(), weights=weights.double().sum().item())

    def run(self) -> None:
        self.tell(started=True)
        if self.options.way in ("ddp", "hsdp"):
            self.train_together()
        else:
            self.train_apart()
        self.manager.shutdown(wait=False)
        os._exit(0)  # torchft's server threads would keep the process


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started: those of a replica, if it is `torchrun`."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


class Fleet:
    """All replicas, seen from the process that starts, kills and restarts them."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        # A survivor notices a lost peer after up to 5 s. New replicas must not begin anew without it meanwhile:
        # they wait `join_timeout_ms` for all that send heartbeats.
        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=7000, quorum_tick_ms=50, heartbeat_timeout_ms=2000
        )
        self.processes = [self.start(place) for place in range(options.replicas)]
        self.first = list(self.processes)
        self.recoveries: list[float] = []

    def start(self, place: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore"]
        if self.options.way == "hsdp":
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SHARDS)]
        command += [__file__, "--replica", str(place), "--way", self.options.way]
        command += ["--out", str(self.folder / f"{place}.json")]
        command += ["--lighthouse", self.lighthouse.address()]
        with open(self.folder / f"{place}.log", "ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def told(self) -> list[dict[str, Any]]:
        """Return what all replicas wrote, in order. A killed replica may leave a part of a line."""
        lines = []
        for file in self.folder.glob("*.json"):
            for line in file.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return sorted((line for line in lines if "step" in line), key=lambda line: float(line["time"]))

    def kill(self, chance: random.Random) -> None:
        """Kill one at a random moment, its start included, and start it again; wait for the next step of another.

        Another that trains must be there: with the last one the state would be lost, and a job needs a checkpoint.
        """
        time.sleep(chance.uniform(0, self.options.every))
        place = chance.randrange(self.options.replicas)
        process = self.processes[place]
        others = {each.pid for each in self.processes} - {process.pid}
        self.wait(lambda line: line["process"] in others)
        killed = time.time()
        parts = children_of(process.pid) if self.options.way == "hsdp" else []
        os.kill(chance.choice(parts or [process.pid]), signal.SIGKILL)
        process.wait()
        self.processes[place] = self.start(place)
        reached = self.wait(lambda line: line["time"] > killed + 0.2 and line["process"] in others)
        self.recoveries.append(reached["time"] - killed)

    def wait(self, is_it: Callable[[dict[str, Any]], bool], limit: float = 120.0) -> dict[str, Any]:
        """Return the first line of any replica that is the one, or end in an error."""
        until = time.time() + limit
        while time.time() < until:
            if found := next(filter(is_it, self.told()), None):
                return found
            assert all(each.poll() is None for each in self.processes), f"A replica ended: {self.folder}"
            time.sleep(0.1)
        raise TimeoutError(f"No such step within {limit:.0f} s; {self.folder} has what the replicas wrote")

    def end(self) -> None:
        """Wait until every replica takes part again, and let all end. One that was started anew has others' state."""
        newest = max((line["step"] for line in self.told()), default=0)
        for process in self.processes:
            first = self.wait(lambda line, pid=process.pid: line["process"] == pid)  # type: ignore[misc]
            assert process in self.first or first["step"] > 0, "A replica began anew"
            self.wait(lambda line, pid=process.pid: line["process"] == pid and line["step"] > newest)  # type: ignore[misc]
        (self.folder / END).touch()
        for process in self.processes:
            assert process.wait(60) == 0, self.folder
        self.lighthouse.shutdown()


def check(told: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Compare the losses with those of one process that is not killed."""
    by_step: dict[int, list[dict[str, Any]]] = {}
    for line in told:
        by_step.setdefault(line["step"], []).append(line)
    if options.way in ("localsgd", "diloco"):
        rounds = [[e["weights"] for e in each if e["replicas"] == options.replicas] for each in by_step.values()]
        spread = max(max(each) - min(each) for each in rounds if each)
        print(f"largest difference between replicas' sums of weights after a round of all {spread:.1e}")
        losses = [line["loss"] for line in told]
        assert spread < 1e-4 and sum(losses[-8:]) < sum(losses[:8])
        return
    whole = {}  # steps of which every replica lived to tell its loss
    for step, lines in by_step.items():
        if len({line["place"] for line in lines}) == lines[-1]["replicas"]:
            whole[step] = sum({line["place"]: line["loss"] for line in lines}.values()) / lines[-1]["replicas"]
    expected = alone(max(whole) + 1)
    difference = max(abs(loss - expected[step]) for step, loss in whole.items())
    print(f"{len(whole)} of {len(by_step)} steps compared, largest difference of a loss {difference:.1e}")
    assert difference < 1e-4 and len(whole) > len(by_step) / 2


def main(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="torchft-"))
    fleet, chance = Fleet(options, folder), random.Random(options.seed)
    try:
        fleet.wait(lambda line: True)
        for number in range(1, options.kills + 1):
            fleet.kill(chance)
            if number % 10 == 0:
                print(f"{number} kills", flush=True)
        fleet.end()
    finally:
        for process in fleet.processes:
            process.kill()
    told = fleet.told()
    slowest = max(fleet.recoveries, default=0.0)
    print(f"{options.way}: {len(fleet.recoveries)} kills, slowest next step of a survivor {slowest:.1f} s")
    print(f"{told[-1]['step'] + 1} steps, loss {told[0]['loss']:.4f} → {told[-1]['loss']:.4f}")
    check(told, options)
    assert slowest < 10


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, default="ddp")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--every", type=float, default=4.0, help="seconds up to the next kill, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replica", help=argparse.SUPPRESS)
    parser.add_argument("--lighthouse", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replica is None:
        main(given)
    else:
        Replica(given).run()
