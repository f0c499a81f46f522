"""What the tests of the embedded model share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a model gains nothing from threads, and on shared cores they wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
