# SPDX-License-Identifier: Apache-2.0
"""Where the programs and their data lie: in a folder that scripts/gpu_package made, or in a build's."""
import glob
import json
import os
import pathlib
import sys

from gpu_checks.process import Failed, Missing, run

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent


class Programs:
    def __init__(self, build):
        package = SCRIPTS.parent
        if build is None and (package / "bin" / "shardwright").exists():
            self.take_package(package)
        else:
            self.take_build(SCRIPTS.parent, build)
        self.environment = dict(os.environ)
        # PyTorch's wheels carry the libraries of CUDA; a machine with them needs no toolkit.
        paths = self.libraries + library_folders() + [self.environment.get("LD_LIBRARY_PATH", "")]
        self.environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        self.environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

    def take_package(self, package):
        listed = json.loads((package / "package.json").read_text())
        self.shardwright = package / "bin" / "shardwright"
        self.tests = [package / name for name in listed["tests"]]
        self.benchmarks = [package / name for name in listed["benchmarks"]]
        self.commit = listed.get("commit", "")
        self.architectures = listed.get("architectures", "")
        self.data = package / "share" / "shardwright" / "profiles"
        self.libraries = [str(package / "lib")]

    def take_build(self, source, build):
        folders = [pathlib.Path(build)] if build else sorted(source.glob("build/*"))
        found = [folder for folder in folders if (folder / "cli" / "shardwright").exists()]
        if not found:
            raise Missing("gpu_check finds no programs: expected a folder made by scripts/gpu_package, or --build with "
                          "a build's folder.")
        # One with CUDA before one without.
        found.sort(key=lambda folder: cached(folder, "SHARDWRIGHT_BUILD_GPU_TESTS") != "ON")
        self.shardwright = found[0] / "cli" / "shardwright"
        self.tests = [pathlib.Path(path) for path in gpu_test_programs(found[0])]
        # Those of the emulator run on the processor.
        self.benchmarks = [path for path in sorted((found[0] / "bench").glob("cuda_*_bench"))
                           if "on_cpu" not in path.name]
        self.commit = ""
        self.architectures = cached(found[0], "SHARDWRIGHT_CUDA_ARCHITECTURES")
        self.data = source / "profiles" / "data"
        self.libraries = []

    @property
    def examples(self):
        return self.data / "examples"

    @property
    def models(self):
        return self.data / "models"

    def run(self, command, seconds, check=True, **environment):
        return run(command, seconds, check, {**self.environment, **environment})


def cached(build, name):
    """A value of CMake's cache, or nothing."""
    try:
        lines = (build / "CMakeCache.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split("=", 1)[1] for line in lines if line.startswith(name + ":")), "")


def gpu_test_programs(build):
    """The programs behind the tests that CTest labels gpu."""
    try:
        listed = run(["ctest", "--test-dir", build, "-L", "gpu", "--show-only=json-v1"], 60, check=False)
        tests = json.loads(listed.stdout)["tests"]
    except (Failed, ValueError, KeyError):
        return []
    return sorted({test["command"][0] for test in tests if test.get("command")})


def library_folders():
    folders = []
    for pattern in ["nvidia/*/lib", "nvidia/cu13/lib"]:
        for place in [*sys.path, *glob.glob("/opt/*/.venv/lib/python3*/site-packages"),
                      *glob.glob("/usr/local/lib/python3*/*-packages")]:
            folders += sorted(glob.glob(os.path.join(place, pattern)))
    folders += [place for place in ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"]
                if os.path.isdir(place)]
    return list(dict.fromkeys(folders))
