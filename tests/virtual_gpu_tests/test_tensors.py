"""Tensors on the virtual GPU behave as those on a real one: devices, views, copies, streams, operators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.virtual_gpu import virtual_gpu
from tests.virtual_gpu.driver import VirtualDriver
from tests.virtual_gpu.tensors import GpuTensor, memory_of


@pytest.fixture(autouse=True)
def gpu() -> Iterator[VirtualDriver]:
    with virtual_gpu("sm_90", processors=132) as driver:
        yield driver


MAKERS = [
    pytest.param(lambda: torch.zeros(2, 3, device="cuda"), id="factory"),
    pytest.param(lambda: torch.zeros(2, 3, device=torch.device("cuda", 0)), id="torch.device"),
    pytest.param(lambda: torch.tensor([[0.0] * 3] * 2, device="cuda:0"), id="tensor"),
    pytest.param(lambda: torch.zeros(2, 3).cuda(), id="cuda()"),
    pytest.param(lambda: torch.zeros(2, 3).to("cuda"), id="to"),
    pytest.param(lambda: torch.zeros(2, 3, dtype=torch.int32).to("cuda", torch.float32), id="to with a dtype"),
    pytest.param(lambda: torch.zeros(2, 3).to(torch.empty(0, device="cuda")), id="to another's device"),
    pytest.param(lambda: torch.zeros_like(torch.ones(2, 3, device="cuda")), id="like"),
    pytest.param(lambda: torch.ones(9, device="cuda").new_zeros(2, 3), id="new"),
    pytest.param(lambda: torch.zeros(2, 3, pin_memory=True).to("cuda", non_blocking=True), id="pinned"),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_for_the_gpu_is_on_it(make) -> None:
    x = make()
    assert isinstance(x, GpuTensor)
    assert (x.device, x.is_cuda, x.is_cpu) == (torch.device("cuda", 0), True, False)
    assert x.shape == torch.Size([2, 3])
    assert x.shape[:-1].numel() == 2
    assert torch.equal(x.cpu(), torch.zeros(2, 3))


def test_what_is_made_for_the_cpu_stays_there() -> None:
    for x in (torch.zeros(2), torch.zeros(2, device="cpu"), torch.zeros(2, device="cuda").cpu(), torch.zeros(2).cpu()):
        assert type(x) is Tensor
        assert x.device.type == "cpu"


def test_copies_between_devices_are_copies() -> None:
    here = torch.arange(4.0)
    there = here.cuda()
    here[0] = 9
    back = there.cpu()
    there[1] = 7
    assert back.tolist() == [0, 1, 2, 3]
    assert there.tolist() == [0, 7, 2, 3]
    assert here.copy_(there) is here
    assert here.tolist() == [0, 7, 2, 3]
    assert there.to("cuda") is there
    assert there.cuda() is there


def test_memory_of_the_host_can_be_pinned_and_that_of_the_gpu_cannot() -> None:
    here = torch.arange(4.0)
    pinned = here.pin_memory()
    here[0] = 9
    assert torch.empty(4, device="cuda").copy_(pinned, non_blocking=True).tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError):
        here.cuda().pin_memory()


def test_views_share_memory_and_in_place_functions_return_their_tensor() -> None:
    x = torch.zeros(4, 6, device="cuda")
    view = x[1:, 2]
    assert view.data_ptr() == x.data_ptr() + 8 * 4
    assert view.fill_(3) is view
    x[0, 0] = 5
    x.view(torch.int32)[3].zero_()
    assert x.sum().item() == 11
    assert x.as_strided((2,), (6,), 2).tolist() == [0, 3]
    x += 1
    assert isinstance(x, GpuTensor)
    assert x.min().item() == 1


def test_results_of_several_tensors_are_on_the_gpu() -> None:
    best = torch.tensor([[1.0, 3.0], [2.0, 0.0]], device="cuda").max(dim=1)
    assert best.values.is_cuda
    assert best.indices.tolist() == [1, 0]
    assert all(part.is_cuda for part in torch.zeros(4, device="cuda").split(2))


def test_two_devices_in_one_function_are_refused() -> None:
    x = torch.zeros(3, device="cuda")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([torch.ones(3), x])
    assert (x + torch.tensor(1.0)).tolist() == [1, 1, 1]  # a number


def test_numpy_does_not_see_the_gpu() -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        torch.zeros(3, device="cuda").numpy()


def test_an_operator_is_served_by_what_is_registered_for_cuda() -> None:
    library = torch.library.Library("virtual_gpu_tests", "FRAGMENT")
    seen: list[Tensor] = []

    def on_cuda(x: Tensor, *, times: int = 2) -> Tensor:
        seen.append(x)
        return torch.ones(x.shape, device=x.device) * times

    library.define("fill(Tensor x, *, int times=2) -> Tensor")
    library.impl("fill", on_cuda, "CUDA")
    library.impl("fill", lambda x, times=2: x.clone(), "CPU")
    x = torch.zeros(3, device="cuda")
    for operator in (torch.ops.virtual_gpu_tests.fill, torch.ops.virtual_gpu_tests.fill.default):
        out = operator(x, times=5)
        assert out.is_cuda
        assert out.tolist() == [5, 5, 5]
        assert operator(torch.zeros(2)).tolist() == [0, 0]
    assert [tensor is x for tensor in seen] == [True, True]
    library._destroy()


def test_torch_cuda_describes_the_gpu() -> None:
    properties = torch.cuda.get_device_properties("cuda")
    assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_name() == "virtual sm_90"
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_per_process_memory_fraction("cuda") == 1
    with torch.cuda.device(torch.device("cuda")):
        assert not torch.cuda.is_current_stream_capturing()


def test_streams_have_names_and_events_times() -> None:
    usual, other = torch.cuda.current_stream(), torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(other):
        begin.record()
        assert torch.cuda.current_stream("cuda").cuda_stream == other.cuda_stream != usual.cuda_stream
    end.record()
    torch.cuda.synchronize()
    assert torch.cuda.current_stream() is usual
    assert begin.elapsed_time(end) >= 0


def test_a_tensor_on_the_gpu_has_memory_of_its_own() -> None:
    x = torch.zeros(3)
    there = x.cuda()
    assert memory_of(x) is x
    assert memory_of(there).data_ptr() == there.data_ptr() != x.data_ptr()
