// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/machine/machine_cuda.h"
#include "cli/machine/processor.h"
#include "cli/machine/program_path.h"
#include "cli/machine/shared_library.h"
#include "sim/core/base/check.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

bool exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The value of KEY="value" in /etc/os-release.
std::string os_release(std::string_view key) {
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != '=') continue;
    std::string value = line.substr(key.size() + 1);
    std::erase(value, '"');
    return value;
  }
  return {};
}

int count_nvidia_devices() {
  int count = 0;
  std::error_code failed;
  for (const fs::directory_entry& device : fs::directory_iterator("/sys/bus/pci/devices", failed)) {
    std::string vendor;
    std::string device_class;
    std::ifstream(device.path() / "vendor") >> vendor;
    std::ifstream(device.path() / "class") >> device_class;
    // Class 03 is display: VGA controllers (00) and compute-only 3D controllers (02).
    if (vendor == "0x10de" && device_class.starts_with("0x03")) ++count;
  }
  return count;
}

Component probe_mpi() {
  Component mpi{.key = "mpi", .title = "MPI"};
  const SharedLibrary library({"libmpi.so.40", "libmpi.so.12", "libmpi.so"});
  if (!library.opened()) {
    mpi.detail = library.problem();
    return mpi;
  }
  mpi.present = true;
  mpi.detail = library.path();
  // 8192 is above MPI_MAX_LIBRARY_VERSION_STRING of Open MPI (256) and MPICH (8192).
  std::array<char, 8193> text{};
  int length = 0;
  auto* version = library.function<int(char*, int*)>("MPI_Get_library_version");
  if (version != nullptr && version(text.data(), &length) == 0) {
    mpi.version = text.data();
    mpi.version = mpi.version.substr(0, mpi.version.find_first_of(",\n"));
  }
  return mpi;
}

// The first program of that list on the PATH.
Component probe_program(std::string key, std::string title, const std::vector<std::string>& names) {
  Component component{.key = std::move(key), .title = std::move(title)};
  for (const std::string& name : names) {
    const fs::path path = program_path(name);
    if (path.empty()) continue;
    component.present = true;
    component.detail = path.string();
    return component;
  }
  component.detail = fmt::format("{} is not on the PATH", names.front());
  return component;
}

}  // namespace

const Component& Machine::component(std::string_view key) const {
  const auto found = std::find_if(components.begin(), components.end(),
                                  [key](const Component& c) { return c.key == key; });
  SHARDWRIGHT_CHECK(found != components.end(), "no component '{}' was probed", key);
  return *found;
}

Machine probe_machine() {
  Machine machine;
  machine.operating_system = os_release("PRETTY_NAME");
  const Processor processor = this_processor();
  machine.processor = processor.name;
  machine.cores = processor.cores;
  machine.memory_bytes = processor.memory_bytes;
  machine.has_apt = !program_path("apt-get").empty();
  machine.in_container = exists("/.dockerenv") || exists("/run/.containerenv");
  machine.nvidia_devices = count_nvidia_devices();
  probe_cuda(machine);
  machine.components.push_back(probe_mpi());
  machine.components.push_back(
      probe_program("cxx_compiler", "C++ compiler", {"c++", "g++", "clang++"}));
  machine.components.push_back(probe_program("cmake", "CMake", {"cmake"}));
  machine.components.push_back(probe_program("ninja", "Ninja", {"ninja"}));
  return machine;
}

}  // namespace shardwright::cli
