"""Build the library: every kernel of `manifest.txt`, for every level of processors of this kind of machine.

    python -m globular.jit.build            # beside this file, or into the folder that --into names

It needs a C compiler, which makes the driver and links. Levels are compiled for, not run: any machine can build all of
its kind. This is the one file, beside `linked`, that needs numba's insides: how numba hands over arguments, as each
kernel's `entry` here has to know, and LLVM's passes in numba's order. It was written for numba 0.68.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from globular.jit.library import FOLDER, INDEX, PIECES, ROUTINES, SUFFIX, Entry, levels, symbol
from globular.jit.sources import closure_digest
from globular.machine import usable_cores

MANIFEST = Path(__file__).parent / "manifest.txt"
PACKAGE_NAME = "globular"
NAMES = {
    "f4": "float32", "f8": "float64", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8",
    "u2": "uint16", "u4": "uint32", "u8": "uint64", "b1": "boolean",
}  # fmt: skip
_LETTERS = {"float64": "d", "int64": "l", "bool": "b", "none": ""}


def read_types(text: str) -> tuple[Any, ...]:
    """Types of arguments from their text."""
    return tuple(_read_types(iter(PIECES.findall(text))))


def _read_types(pieces: Iterator[str]) -> Iterator[Any]:
    from numba import types as numba_types

    types: Any = numba_types
    for piece in pieces:
        if piece == ")":
            return
        if not piece.endswith("("):
            scalar, _, array = piece.partition(":")
            kind = getattr(types, NAMES[scalar])
            yield types.Array(kind, int(array[0]), array[1], readonly=array.endswith("!")) if array else kind
            continue
        within, (module, _, name) = tuple(_read_types(pieces)), piece[:-1].rpartition(".")
        if not name:
            yield types.Tuple(within)
            continue
        named, alike = getattr(import_module(f"{PACKAGE_NAME}.{module}"), name), len(set(within)) == 1
        yield types.NamedUniTuple(within[0], len(within), named) if alike else types.NamedTuple(within, named)


def lines() -> list[str]:
    """The manifest: a kernel and the types of its arguments on each line."""
    return MANIFEST.read_text().splitlines()


def compiled(kernel: Any, kinds: str) -> Any:
    """What numba makes of a kernel for these types; LLVM has not gone through the code of its library yet."""
    from numba.core.registry import CPUDispatcher

    from globular.jit.functions import resolved
    from globular.jit.linked import AS_CALLEE, OPTIONS, WholeKernelCompiler

    options = {**OPTIONS, **kernel.options, **AS_CALLEE}
    dispatcher: Any = CPUDispatcher(resolved(kernel.function), {}, options, WholeKernelCompiler)
    dispatcher.compile(read_types(kinds))
    (result,) = dispatcher.overloads.values()
    result.library.finalize()
    return result


def entry_code(symbol: str, name: str, kinds: Sequence[str]) -> str:
    """A function of words and of the place for results that calls a kernel with `kinds` of flat arguments."""
    code, values = [], []
    for k, kind in enumerate(kinds):
        code += [f"%p{k} = getelementptr i64, ptr %words, i64 {k}", f"%w{k} = load i64, ptr %p{k}"]
        if kind == "i64":
            code.append(f"%a{k} = add i64 %w{k}, 0")
        elif kind == "ptr":
            code.append(f"%a{k} = inttoptr i64 %w{k} to ptr")
        elif kind == "double":
            code.append(f"%a{k} = bitcast i64 %w{k} to double")
        elif kind == "float":
            code += [f"%h{k} = trunc i64 %w{k} to i32", f"%a{k} = bitcast i32 %h{k} to float"]
        else:
            code.append(f"%a{k} = trunc i64 %w{k} to {kind}")
        values.append(f"{kind} %a{k}")
    kinds_of_all = ", ".join(["ptr", "ptr", *kinds])
    call = ", ".join(["ptr %results", "ptr %failure", *values])
    body = "\n  ".join(["%failure = alloca ptr", *code, f'%status = call i32 @"{name}"({call})', "ret i32 %status"])
    return f'declare i32 @"{name}"({kinds_of_all})\ndefine i32 @"{symbol}"(ptr %words, ptr %results) {{\n  {body}\n}}\n'


def object_code(symbol: str, kernel: Any, kinds: str, cpu: str = "", features: str = "") -> tuple[bytes, str]:
    """Machine code of a kernel for these types behind its entry, and letters of what it returns."""
    import llvmlite.binding as llvm

    result = compiled(kernel, kinds)
    library = result.library
    module, name = llvm.parse_assembly(library.get_llvm_str()), result.fndesc.llvm_func_name
    called = module.get_function(name)
    called.add_function_attribute("noinline")
    given = [str(argument.type) for argument in called.arguments][2:]
    module.link_in(llvm.parse_assembly(entry_code(symbol, name, given)))
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    passes, options = library._codegen._module_pass_manager()
    passes.run(module, options)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default")
    returned = result.signature.return_type
    numbers = getattr(returned, "types", [returned])
    return machine.emit_object(module), "".join(_LETTERS[str(each)] for each in numbers)


def build_share(folder: Path, level: str, number: int, among: int) -> None:
    """Write the object files of a part of the manifest, and its lines of the index."""
    found = []
    for k, line in list(enumerate(lines()))[number::among]:
        (name, _, kinds), symbol = line.partition(" "), f"globular_{k}"
        module, _, function = name.rpartition(".")
        kernel = getattr(import_module(f"{PACKAGE_NAME}.{module}"), function)
        code, returns = object_code(symbol, kernel, kinds, *levels()[level])
        (folder / f"{symbol}.o").write_bytes(code)
        digest = closure_digest(f"{PACKAGE_NAME}.{module}")
        found.append(str(Entry(name, digest or "", symbol, returns or "-", kinds)))
    (folder / f"{number}.index").write_text("\n".join(found) + "\n")


def blas_object() -> bytes:
    """Machine code of the variables that hold addresses of BLAS."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    code = "".join(f"@{symbol(routine)} = global ptr null\n" for routine in ROUTINES)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return bytes(target.create_target_machine(reloc="pic").emit_object(llvm.parse_assembly(code)))


def link(compiler: str, out: Path, *inputs: Path | str) -> None:
    """A shared library; what it does not have itself it finds in the process."""
    loose = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-Wl,--no-undefined-version", "-Wl,-s"]
    subprocess.run([compiler, "-shared", "-o", out, *inputs, *loose], check=True)


def find_compiler() -> str | None:
    """The C compiler: CC, or one that is usual; None if there is none."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_driver(compiler: str, out: Path) -> None:
    """Compile `driver.c`."""
    source, include = Path(__file__).with_name("driver.c"), sysconfig.get_paths()["include"]
    link(compiler, out, "-O2", "-fPIC", "-fvisibility=hidden", f"-I{include}", source)


def build_level(name: str, compiler: str, out: Path) -> None:
    """The library of one level, compiled by as many processes as there are cores."""
    cpu, features = levels()[name]
    variables = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "GLOBULAR_JIT": "fast"}
    among = usable_cores()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(among) as pool:
        folder = Path(temporary)
        program = "import sys; from pathlib import Path; from globular.jit.build import build_share;"
        program += "build_share(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"

        def run(number: int) -> None:
            command = [sys.executable, "-P", "-c", program, str(folder), name, str(number), str(among)]
            subprocess.run(command, check=True, env={**os.environ, **variables})

        list(pool.map(run, range(among)))
        (folder / "blas.o").write_bytes(blas_object())
        link(compiler, out / f"{name}{SUFFIX}", "-nostdlib", *sorted(folder.glob("*.o")))
        found = sorted("".join(path.read_text() for path in folder.glob("*.index")).splitlines())
        (out / INDEX).write_text("\n".join(found) + "\n")


def build(into: Path = FOLDER) -> Iterator[str]:
    """Build everything into a folder, and name what is done; the folder changes when all is there.

    The index counts kernels as the manifest does, so it must never stand beside libraries of another manifest.
    """
    compiler = find_compiler()
    if compiler is None:
        raise SystemExit("a C compiler is needed to link kernels: install one, or name it by CC")
    if not levels():
        raise SystemExit("there are no levels for this kind of machine: kernels are compiled by numba")
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".building-") as temporary:
        folder = Path(temporary) / into.name
        folder.mkdir(0o755)
        build_driver(compiler, folder / f"driver{SUFFIX}")
        yield "driver"
        for name in levels():
            build_level(name, compiler, folder)
            ctypes.CDLL(str(folder / f"{name}{SUFFIX}"), mode=os.RTLD_NOW)  # everything that it calls is there
            yield name
        shutil.rmtree(into, ignore_errors=True)
        folder.rename(into)


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=FOLDER)
    for done in build(parser.parse_args().into):
        print(done, flush=True)


if __name__ == "__main__":
    main()
