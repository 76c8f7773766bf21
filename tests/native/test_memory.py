"""Memory of the library: asked for as the standard wants it, since not every system forgives another size, and never
read beyond its end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foredraft.models.native import LEVELS, build
from foredraft.models.native.levels import possible

GCC = shutil.which("g++")
PROGRAM = """
#include "line.h"
static size_t odd = 0;
extern "C" void* aligned_alloc(size_t alignment, size_t size) {  // in the place of the system's
    odd += size % alignment != 0;
    void* found = nullptr;
    return posix_memalign(&found, alignment, size) ? nullptr : found;
}
struct Wide { char bytes[112]; };  // as a block of words.h, which fills no whole lines
int main() {
    Line<Wide> line;
    for (size_t count = 1; count < 50; count++) {
        line.reserve(count);
        if (line.size < count) return 1;
    }
    return odd ? 2 : 0;
}
"""


SCALES = """
#include "forms.h"
#include <sys/mman.h>
#include <unistd.h>
// Scales of one block of columns that end where memory does; every scale that a product asks for.
template <class Form> void read_all(uint8_t* end, int blocks) {
    const uint8_t* scales = end - Form::scale_bytes(blocks);
    for (int k = 0; k < blocks; k++)
        for (int group = 0; group < Form::GROUPS; group++) {
            volatile Floats step = Form::step(scales, k, group), least = Form::least(scales, k, group);
            (void)step, (void)least;
        }
}
int main() {
    const long page = sysconf(_SC_PAGESIZE);
    uint8_t* at = (uint8_t*)mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at + 2 * page, page, PROT_NONE);
    for (int format = GRID8; format <= CURVED4_SUPER; format++)
        by_form(format, [&](auto form) { read_all<decltype(form)>(at + 2 * page, 8); });
}
"""
AVX512 = LEVELS["avx512"] in possible()


@pytest.mark.skipif(GCC is None or not AVX512, reason="needs g++ and AVX-512")
def test_scales_are_not_read_beyond_their_end(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(SCALES)
    flags = ["-std=c++2a", *LEVELS["avx512"].flags, f"-I{build.HERE}"]
    subprocess.run([str(GCC), *flags, "program.cpp", "-o", "program"], cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "program")], check=False).returncode == 0


@pytest.mark.skipif(GCC is None, reason="needs g++")
def test_room_comes_in_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(PROGRAM)
    command = [str(GCC), "-std=c++2a", f"-I{build.HERE}", "program.cpp", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "program")], check=False).returncode == 0
