"""Several processes train as one does: same draws, same weights, noise once and in full, one ledger, one run folder.

Run as a script, this file imports all there is, and forks the processes that a line on its input asks for: importing
torch in each of them would take longer than all else.
"""

import ctypes
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import sordino
from sordino.budget import Ledger
from sordino.cli.main import run as command
from sordino.data import ImageFiles, PoissonSampler
from sordino.data.image_index import ImageIndex
from sordino.features import Pixels, StoredImages
from sordino.gradients import tuning
from sordino.runs import Key, Run
from sordino.training import SGD, Adam, LinearClassifier, Plan, PrivateLoop
from sordino.training.heads import NetworkHead
from sordino.training.helping import check_sendable
from sordino.training.modules import TrainableModule
from sordino.training.plan import QuantileClip
from sordino.training.sharding import local

LOSS = nn.CrossEntropyLoss(reduction="none")
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (200,), generator=GENERATOR)
WIDE = 20_000
KILLED_AT = 8
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def loop(model: nn.Module, data: Any = (X, Y), **changes: Any) -> PrivateLoop:
    """A user's own loop, under DDP where there are several processes."""
    model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    options = {"expected_batch_size": 40, "epochs": 2, "l2_clip": 0.5, "physical_batch": 16, "loss": LOSS} | changes
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    private: PrivateLoop = sordino.make_private(
        model, optimizer, options.pop("loss"), data, target_epsilon=5.0, target_delta=1e-4, **options
    )
    return private


def stepped(private: PrivateLoop) -> dict[str, Any]:
    sizes = []
    for x, y in private.batches():
        sizes.append(len(x))
        private.step(x, y)
    count = private.ledger.entries[0].count
    weights = {name: value.clone() for name, value in private._model.weights().items()}
    facts = {"epsilon": private.epsilon(), "clip": private.l2_clip, "network": os.readlink("/proc/self/ns/net")}
    return {"weights": weights, "sizes": sizes, "count": count, **facts}


def own_loop(folder: Path) -> dict[str, Any]:
    """By a seed the noise is the same however many processes there are. Each starts from other weights."""
    return stepped(loop(network(rank()), seed=1, quantile_clip=QuantileClip(5.0)))


def small_draws(folder: Path) -> dict[str, Any]:
    """Most draws have records in one shard, or in none."""
    return stepped(loop(network(), seed=2, expected_batch_size=1, epochs=0.1))


def fitted(folder: Path) -> dict[str, Any]:
    """Trainings without noise, of a module with its own weights, and of a linear classifier."""
    plan, ledger = Plan.without_noise(PoissonSampler(200, 40), 0.5, epochs=4), Ledger()
    network_weights = sordino.fit(
        plan, network(rank()), (X, Y), loss=LOSS, optimiser=Adam(0.05), ledger=ledger, seed=1
    ).weights
    linear = sordino.fit(plan, LinearClassifier(6, 3), (X, Y), optimiser=SGD(0.5), ledger=ledger, seed=1)
    charged = [entry.count for entry in ledger.entries]
    return {"weights": network_weights, "linear": linear.weights, "charged": charged, "steps": linear.steps}


def noise(folder: Path) -> dict[str, Any]:
    """Every gradient is zero, so the weights are the noise alone, from a secret."""
    model = nn.Linear(WIDE, 1, bias=False)
    nn.init.zeros_(model.weight)
    options = {"epochs": 0.6, "expected_batch_size": 40, "l2_clip": 0.5, "physical_batch": 16}
    private = sordino.make_private(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        first_output,
        (torch.zeros(200, WIDE), Y),
        **{"target_epsilon": 5.0, "target_delta": 1e-4} | options,
    )
    found = stepped(private)
    return found | {"deviation": private.plan.steps**0.5 * private.plan.noise_multiplier * 0.5 / 40}


def first_output(output: Tensor, y: Tensor) -> Tensor:
    return output[:, 0]


def sharded(folder: Path, run: str = "sharded", stop: int = 60) -> dict[str, Any]:
    """A run by FSDP2: each process has a part of the weights and of the optimiser's state."""
    model = network()
    for layer in (model[0], model[2], model) if dist.is_initialized() else ():  # type: ignore[index]
        fully_shard(layer)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
    private = sordino.make_private(
        model,
        optimizer,
        LOSS,
        (X, Y),
        **{"target_epsilon": 5.0, "target_delta": 1e-4, "expected_batch_size": 40, "epochs": 12, "l2_clip": 0.5},
        **{"physical_batch": 16, "run": folder / run, "seed": 4, "schedulers": [scheduler]},
    )
    for x, y in private.batches(stop - private.drawn):
        private.step(x, y)
        scheduler.step()
    held = sum(local(value).numel() for values in optimizer.state.values() for value in values.values())
    private.close()
    with torch.no_grad():
        outputs = model(X)
    return {"weights": private._model.weights(), "held": held, "outputs": outputs, "drawn": private.drawn}


def cut_short(folder: Path) -> dict[str, Any]:
    """The same, left in the middle of a block, and resumed by another model."""
    sharded(folder, "resumed", stop=32)
    return sharded(folder, "resumed")


def killed(folder: Path, at: int = KILLED_AT, victim: int = 1) -> dict[str, Any]:
    """A run of 60 steps in blocks of 3, of which a process is killed at one; weights after each step are shown."""
    private = loop(network(), epochs=12, run=folder / "run")
    for x, y in private.batches():
        if rank() == victim and private.drawn == at:
            os.kill(os.getpid(), signal.SIGKILL)
        private.step(x, y)
        if rank() == 0:
            shown = folder / "shown" / str(private.drawn)
            shown.mkdir(parents=True, exist_ok=True)
            torch.save(private._model.weights(), shown / f"{len(list(shown.iterdir()))}.pt")
    return {"count": private.ledger.entries[0].count, "weights": private._model.weights()}


def resumed(folder: Path) -> dict[str, Any]:
    return killed(folder, at=0)


def failing(folder: Path) -> dict[str, Any]:
    """A loss that fails in one process, after a few steps."""
    calls = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        calls.append(len(output))
        if rank() == 1 and private is not None and private.drawn == 3:
            raise ArithmeticError("out of numbers")
        return nn.functional.cross_entropy(output, y, reduction="none")

    private = None
    private = loop(network(), loss=loss)
    return stepped(private)


def other_records(folder: Path) -> dict[str, Any]:
    return stepped(loop(network(), (X + rank(), Y)))


def commands(folder: Path, arguments: list[str]) -> dict[str, Any]:
    try:
        command(arguments)
    except SystemExit as end:
        return {"code": end.code}
    raise AssertionError("a command ends by SystemExit")


PROGRAMS: list[Any] = [
    own_loop,
    small_draws,
    fitted,
    noise,
    sharded,
    cut_short,
    killed,
    resumed,
    failing,
    other_records,
    commands,
]


def one_of_them(names: list[str], folder: Path, own_rank: int, options: dict[str, Any]) -> None:
    """What a forked process does: each program in turn, its result in a file; an error is one line."""
    for stream, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{own_rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    own = [program for program in PROGRAMS if program.__name__ in names]
    if own != [commands]:  # a command joins the others by itself
        dist.init_process_group("gloo")
    for program in own:
        torch.save(program(folder, **options), folder / f"{program.__name__}-{own_rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def enter_network(name: str) -> None:
    """Move this process to a network of its own."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter the network {name}")


def serve() -> None:
    """For each line of JSON on the input, processes; then a line with how they have ended, and after how long."""
    for line in sys.stdin:
        asked = json.loads(line)
        children = []
        for own_rank in range(asked["size"]):
            child = os.fork()
            if not child:
                code = 1
                try:
                    os.environ |= {"RANK": str(own_rank), "WORLD_SIZE": str(asked["size"])} | asked["environment"]
                    if asked["networks"]:
                        os.environ["GLOO_SOCKET_IFNAME"] = asked["networks"][own_rank]
                        enter_network(asked["networks"][own_rank])
                    one_of_them(asked["names"], Path(asked["folder"]), own_rank, asked["options"])
                    code = 0
                except ValueError as problem:
                    print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
                    code = 2
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        print(json.dumps(ends_of(children)), flush=True)


def ends_of(children: list[int]) -> list[tuple[int, float]]:
    """Exit code of each, and when it ended; those that are still there after two minutes are killed."""
    ended: dict[int, tuple[int, float]] = {}
    deadline = time.monotonic() + 120
    while len(ended) < len(children):
        for child in children:
            if child not in ended:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    ended[child] = os.waitstatus_to_exitcode(status), time.monotonic()
                elif time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [ended[child] for child in children]


class Processes:
    """Runs programs in several processes."""

    def __init__(self, server: "subprocess.Popen[str]") -> None:
        self._server = server

    def run(
        self,
        folder: Path,
        size: int,
        *names: str,
        networks: tuple[str, ...] = (),
        options: dict[str, Any] | None = None,
        address: str = "127.0.0.1",
    ) -> list[tuple[int, float]]:
        """Exit codes, and when each ended."""
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = {"MASTER_ADDR": address, "MASTER_PORT": port, "SORDINO_STATE": str(folder / "state")}
        asked = {"names": names, "folder": str(folder), "size": size, "networks": networks, "options": options or {}}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked | {"environment": environment}), file=self._server.stdin, flush=True)
        return [(code, when) for code, when in json.loads(self._server.stdout.readline())]

    def results(self, folder: Path, size: int, *names: str, **changes: Any) -> list[list[dict[str, Any]]]:
        """Of each program, what each process returned."""
        ended = self.run(folder, size, *names, **changes)
        said = "".join((folder / f"{place}.err").read_text() for place in range(size))
        assert [code for code, _ in ended] == [0] * size, said
        return [[torch.load(folder / f"{name}-{place}.pt") for place in range(size)] for name in names]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Processes(server)
        assert server.stdin is not None
        server.stdin.close()


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_train_as_one_does(size: int, processes: Processes, tmp_path: Path) -> None:
    found = processes.results(tmp_path, size, "own_loop", "small_draws", "fitted", "noise")
    loops, small, fits, noises = found
    for each, alone in ((loops, own_loop(tmp_path)), (small, small_draws(tmp_path))):
        shards = zip(*(one["sizes"] for one in each), strict=True)
        assert [sum(shard) for shard in shards] == alone["sizes"]
        for one in each:
            assert_same_weights(one["weights"], alone["weights"])
            assert one["clip"] == pytest.approx(alone["clip"], rel=1e-6)
            assert (one["epsilon"], one["count"]) == (alone["epsilon"], alone["count"])
    assert any(0 in one["sizes"] and sum(one["sizes"]) for one in small)
    alone = fitted(tmp_path)
    for one in fits:
        assert_same_weights(one["weights"], alone["weights"])
        assert_same_weights(one["linear"], alone["linear"])
        assert (one["charged"], one["steps"]) == (alone["charged"], alone["steps"])
    # Noise of the full variance, the same in every process: 20,000 numbers have it within 2 % but once in 10,000 times.
    for one in noises:
        assert torch.equal(one["weights"]["weight"], noises[0]["weights"]["weight"])
        assert one["weights"]["weight"].std().item() == pytest.approx(one["deviation"], rel=0.02)
        assert one["epsilon"] == noise(tmp_path)["epsilon"] <= 5


def test_a_model_in_shards_trains_as_a_whole_one(processes: Processes, tmp_path: Path) -> None:
    found, again = processes.results(tmp_path, 2, "sharded", "cut_short")
    alone = sharded(tmp_path, "alone")
    for one in (*found, *again):
        assert_same_weights(one["weights"], alone["weights"])
        torch.testing.assert_close(one["outputs"], alone["outputs"], rtol=0, atol=1e-4)
        assert one["drawn"] == 60
    moments = 2 * sum(value.numel() for value in alone["weights"].values())
    assert alone["held"] == moments + 4  # steps are counted for each weight
    assert sum(one["held"] for one in found) == moments + 8


@pytest.fixture
def networks() -> Iterator[tuple[str, str]]:
    """Two networks of the kernel's, as on two machines, with a cable between them; each has the name of its end."""
    names = one, other = f"s{os.getpid()}a", f"s{os.getpid()}b"
    orders = [f"netns add {one}", f"netns add {other}"]
    orders += [f"link add {one} netns {one} type veth peer name {other} netns {other}"]
    for place, name in enumerate(names):
        orders += [f"-n {name} addr add 10.91.0.{place + 1}/24 dev {name}", f"-n {name} link set {name} up"]
        orders += [f"-n {name} link set lo up"]
    try:
        for order in orders:
            done = subprocess.run(["ip", *order.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"this system makes no networks here: {done.stderr.strip()}")
        yield names
    except FileNotFoundError:
        pytest.skip("this system has no `ip` (Debian's iproute2)")
    finally:
        for name in names if shutil.which("ip") else ():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_the_page_on_many_devices_runs_under_torchrun(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/many-devices.md").read_text(encoding="utf-8")
    [code], [printed] = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    (tmp_path / "loop.py").write_text(code)
    assert "\ntorchrun --nproc-per-node 2 loop.py\n" in page
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "loop.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert (tmp_path / "runs/devices/model.safetensors").exists()


def test_machines_meet_over_a_network(processes: Processes, networks: tuple[str, str], tmp_path: Path) -> None:
    [found] = processes.results(tmp_path, 2, "own_loop", networks=networks, address="10.91.0.1")
    alone = own_loop(tmp_path)
    assert len({alone["network"], *(one["network"] for one in found)}) == 3
    for one in found:
        assert_same_weights(one["weights"], alone["weights"])


def test_a_killed_process_ends_the_others_and_the_run_resumes(processes: Processes, tmp_path: Path) -> None:
    (first, _), (second, _) = ended = processes.run(tmp_path, 2, "killed")
    assert (first, second) == (2, -signal.SIGKILL)
    assert abs(ended[0][1] - ended[1][1]) < 10
    said = (tmp_path / "0.err").read_text()
    assert "process 0 of 2 has lost another" in said
    assert said.count("\n") == 1
    run = Run(tmp_path / "run")
    assert Ledger.open(run.ledger).entries[0].count == 9  # in blocks of 3, and the 8th step was drawn

    [again] = processes.results(tmp_path, 2, "resumed")
    assert [one["count"] for one in again] == [60, 60]
    assert_same_weights(again[0]["weights"], again[1]["weights"], 0)
    assert Ledger.open(run.ledger).entries[0].count == 60
    assert run.model.exists()
    assert Key.read(run) is None
    # Steps that were drawn before are repeated bit for bit: their noise has met one sum.
    for step in range(1, 61):
        shown = [torch.load(path) for path in (tmp_path / "shown" / str(step)).iterdir()]
        assert len(shown) == (2 if step == 7 else 1)
        assert_same_weights(shown[-1], shown[0], 0)


def test_without_the_process_that_leads_the_others_end(processes: Processes, tmp_path: Path) -> None:
    (first, _), (second, _) = processes.run(tmp_path, 2, "killed", options={"victim": 0})
    assert (first, second) == (-signal.SIGKILL, 2)
    assert "process 1 of 2 has lost another" in (tmp_path / "1.err").read_text()
    assert Ledger.open(tmp_path / "run/ledger.json").entries[0].count == 9


def test_another_number_of_processes_has_fresh_noise(processes: Processes, tmp_path: Path) -> None:
    """Sums round differently there: lost steps are charged again, and the key has another era."""
    processes.run(tmp_path, 2, "killed")
    run = Run(tmp_path / "run")
    before = Key.read(run)
    assert before is not None
    assert len(before.choices["processes"]) == 2
    alone = loop(network(), epochs=12, run=run)
    after = Key.read(run)
    assert after is not None
    assert (before.era, after.era, after.lost) == (0, 1, 3)  # charged to step 9, from the checkpoint at 6
    assert stepped(alone)["count"] == 60
    assert alone.drawn == 57


def test_an_error_in_one_process_ends_all(processes: Processes, tmp_path: Path) -> None:
    for name, words in (("failing", "process 1 has failed"), ("other_records", "process 1 has another records")):
        ended = processes.run(tmp_path, 2, name)
        assert [code for code, _ in ended] == [2, 2]
        for place in range(2):
            said = (tmp_path / f"{place}.err").read_text()
            assert words in said
            assert said.count("\n") == 1


def test_a_command_trains_on_several_processes(processes: Processes, tmp_path: Path) -> None:
    arguments = ["train", "digits", "--recipe", "linear", "--epsilon", "3", "--delta", "1e-4", "--seed", "1", "--json"]
    arguments += ["--out", str(tmp_path / "run")]
    [(one, _)] = processes.results(tmp_path, 2, "commands", options={"arguments": arguments})
    assert one == {"code": 0}
    result = json.loads((tmp_path / "0.out").read_text())
    assert result["epsilon"] <= 3
    assert (tmp_path / "1.out").read_text() == (tmp_path / "1.err").read_text() == ""
    with pytest.raises(SystemExit):
        command([*arguments[:-1], str(tmp_path / "alone")])
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "run", tmp_path / "alone")]
    assert_same_weights(weights[0], weights[1])
    ended = processes.run(tmp_path, 2, "commands", options={"arguments": ["resume", str(tmp_path / "run")]})
    assert [torch.load(tmp_path / f"commands-{place}.pt")["code"] for place in range(2)] == [2, 0], ended
    assert "finished" in (tmp_path / "0.err").read_text()


def test_what_helpers_are_sent_can_be_sent(tmp_path: Path) -> None:
    """Models and records of heads whose network begins from weights that a closure gives; and what cannot be sent."""
    head = NetworkHead(lambda classes: network(), input_scale=0.5, begin=lambda model: None)
    model = head.model(6, 3)
    assert isinstance(model, TrainableModule)
    same = pickle.loads(pickle.dumps(model))
    assert same.facts() == model.facts()
    assert_same_weights(same.weights(), model.weights(), 0)
    for part in range(2):
        Image.new("L", (8, 8), part).save(tmp_path / f"{part}.png")
    index = ImageIndex(tmp_path, ("0.png", "1.png"), np.array([0, 1]), ("a", "b"))
    records = head.records(StoredImages(ImageFiles(index, 8, 1), Pixels(), cache=tmp_path), index.labels)
    assert torch.equal(pickle.loads(pickle.dumps(records)).batch(np.arange(2))[0], records.batch(np.arange(2))[0])
    with pytest.raises(ValueError, match="cannot be sent to other processes"):
        check_sendable(lambda: None)


def test_other_commands_refuse_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as end:
        command(["tune", "table.csv", "--target", "a", "--epsilon", "1", "--delta", "1e-3"])
    assert end.value.code == 2
    assert "one process" in capsys.readouterr().err


if __name__ == "__main__":
    tuning._PATIENCE = 0.0  # type: ignore[attr-defined]
    warnings.simplefilter("error")
    serve()
