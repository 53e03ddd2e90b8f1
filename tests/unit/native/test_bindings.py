"""The bindings say the same as the C header, and refuse a library that is not theirs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_runtime.native import Field, NativeError, Status, Tag
from ebbtide_runtime.native.library import ABI_VERSION, CHECKED, CLOSING, Library, library

ROOT = Path(__file__).resolve().parents[3]
HEADER = (ROOT / "csrc/include/ebbtide.h").read_text()


def c_enum(prefix: str) -> dict[str, int]:
    found = re.findall(rf"\b{prefix}(\w+) = (-?\d+)", HEADER)
    return {name: int(number) for name, number in found}


def test_fields_are_the_headers() -> None:
    fields = c_enum("EBB_F_")
    assert fields.pop("COUNT") == len(Field)
    assert {field.name: field.value for field in Field} == fields


def test_tags_are_the_headers() -> None:
    tags = c_enum("EBB_TAG_")
    assert tags.pop("COUNT") == len(Tag)
    assert {tag.name: tag.value for tag in Tag} == tags


def test_statuses_are_the_headers_and_the_librarys() -> None:
    body = HEADER[HEADER.index("typedef enum ebb_status") : HEADER.index("} ebb_status;")]
    names = {name: int(number) for name, number in re.findall(r"EBB_(\w+) = (-?\d+)", body)}
    assert {status.name: status.value for status in Status} == names


def test_every_function_of_the_header_is_bound() -> None:
    declared = set(re.findall(r"EBB_API [\w* ]+?\*? ?\*?(ebb_\w+)\(", HEADER))
    unchecked = {"ebb_abi_version", "ebb_status_name", "ebb_crc32c_is_hardware", "ebb_host_device"}
    assert declared == set(CHECKED) | set(CLOSING) | unchecked


def test_the_abi_is_the_headers() -> None:
    assert re.search(rf"#define EBB_ABI_VERSION {ABI_VERSION}u", HEADER)


def test_only_the_api_is_exported() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", library().path], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}
    assert {name for name in names if not name.startswith("ebb_")} == set()
    assert set(CHECKED) <= names


def test_an_old_glibc_is_enough() -> None:
    """Images with glibc 2.28 load the library, whatever this machine has."""
    listed = subprocess.run(["objdump", "-T", library().path], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", listed)}
    assert max(versions) <= (2, 28)


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NativeError) as caught:
        Library(tmp_path / "libebbtide.so")
    assert caught.value.status is Status.NOT_FOUND
    assert "scripts/build" in caught.value.message


def test_another_abi_is_refused(tmp_path: Path) -> None:
    source, built = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("unsigned ebb_abi_version(void) { return 99; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", built, source], check=True)
    with pytest.raises(NativeError) as caught:
        Library(built)
    assert caught.value.status is Status.WRONG_ABI


def test_the_environment_names_the_library(tmp_path: Path) -> None:
    program = "from ebbtide_runtime.native.library import library_path; print(library_path())"
    found = subprocess.run(
        [sys.executable, "-c", program], env={"EBBTIDE_LIBRARY": "/x/y.so"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "/x/y.so"


def test_importing_loads_nothing() -> None:
    program = "import ebbtide_runtime.native; assert 'libebbtide' not in open('/proc/self/maps').read()"
    subprocess.run([sys.executable, "-c", program], check=True)
