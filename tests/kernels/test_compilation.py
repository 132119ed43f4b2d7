"""Kernels compile for a GPU that is not there: the interpreter of Triton accepts code that its compiler does not."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

# Run in a process of its own: in this one Triton interprets its kernels.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from elmokit.kernels.cuda.attention import attention_backward, attention_forward

TYPES = {"num_past": "*i64", "lengths": "*i64", "cos": "*fp32", "sin": "*fp32", "logsumexp": "*fp32",
         "T": "i32", "B": "i32", "scale": "fp32", "eps": "fp32"}
SMALL = {"P": 16, "HEAD": 8, "HALF": 16, "DIM": 32, "W": 4, "BT": 16, "PRECISION": "ieee", "STATE": True}
BACKWARD = [
    {"PAST": False, "GRAD_PAST": False, "ALONE": False},
    {"PAST": True, "GRAD_PAST": False, "ALONE": False},
    {"PAST": True, "GRAD_PAST": True, "ALONE": False},
]

def compile_for_a_gpu(kernel, **constants):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else TYPES.get(name, "*bf16") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__, "cubin" in compiled.asm)

compile_for_a_gpu(attention_forward, **SMALL, PAST=True, SAVE=True, SHIFT=0.0)
for flags in BACKWARD:
    compile_for_a_gpu(attention_backward, **SMALL, **flags)
"""


def test_attention_compiles_for_rows_of_several_tiles_with_and_without_a_past(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n") == ["attention_forward True", *["attention_backward True"] * 3, ""]
