"""One rank of what a user's program does with PyTorch's gloo back end.

It takes everything from its environment, as under a launcher: a default
group, all_reduce, DistributedDataParallel over a small model, further
groups, an orderly end. It prints "rank R of N ok".
"""
import os

import torch
import torch.distributed as dist


def train(rank, size):
    torch.manual_seed(rank)  # so that only DDP makes the models equal
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(),
                                torch.nn.Linear(16, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(4, 8)).square().sum().backward()
        optimizer.step()
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(everyone, mine)
    assert all(torch.equal(mine, other) for other in everyone)
    assert mine.abs().sum() > 0


def main():
    # Some versions of gloo tell standard output about their connections, in
    # pieces that mix with another rank's.
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size) == (int(os.environ["RANK"]),
                            int(os.environ["WORLD_SIZE"]))
    total = torch.full((1000,), float(rank + 1))
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((1000,), size * (size + 1) / 2))
    train(rank, size)

    everyone = dist.new_group()
    alone = [dist.new_group([member]) for member in range(size)][rank]
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor, group=everyone)
    assert tensor.item() == size * (size + 1) // 2
    dist.all_reduce(tensor, group=alone)
    assert tensor.item() == size * (size + 1) // 2
    dist.barrier()
    dist.destroy_process_group()
    # One write: two ranks share the stream.
    os.write(output, f"rank {rank} of {size} ok\n".encode())


main()
