"""Which files count as a library's."""

import json

import numpy
import torch

from supervisor.training_state.user_code import is_library_file


def test_python_and_packages_are_libraries_and_a_users_file_is_none():
    assert all(is_library_file(module.__file__) for module in (json, numpy, torch.nn))
    assert not is_library_file(__file__)
