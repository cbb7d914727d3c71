// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/machine.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "exec/libraries/rules.h"
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

std::string mebibytes(Bytes bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

// What containers give little of: processes of NCCL exchange buffers in it.
Component probe_shared_memory() {
  Component component{.key = "shared_memory", .title = "/dev/shm"};
  const Bytes wanted = exec::libraries::rule_number("nccl.shared_memory", "bytes");
  struct statvfs found {};
  if (statvfs("/dev/shm", &found) != 0) {
    component.detail = "there is none, in which NCCL's processes share memory";
    return component;
  }
  const Bytes size = static_cast<Bytes>(found.f_blocks) * static_cast<Bytes>(found.f_frsize);
  component.present = size >= wanted;
  if (component.present) {
    component.version = mebibytes(size);
  } else {
    component.detail = fmt::format("{}, in which NCCL's processes share memory, expected {}",
                                   mebibytes(size), mebibytes(wanted));
  }
  return component;
}

// InfiniBand adapters lock what they read and write.
Component probe_locked_memory() {
  Component component{.key = "locked_memory", .title = "locked memory"};
  rlimit limit{};
  std::error_code failed;
  const bool has_adapter =
      fs::directory_iterator("/sys/class/infiniband", failed) != fs::directory_iterator();
  component.present =
      !has_adapter || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  if (!component.present) {
    component.detail =
        fmt::format("{} of a process for its InfiniBand adapters, expected unlimited",
                    mebibytes(static_cast<Bytes>(limit.rlim_cur)));
  }
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
  machine.components.push_back(probe_shared_memory());
  machine.components.push_back(probe_locked_memory());
  machine.components.push_back(probe_mpi());
  machine.components.push_back(
      probe_program("cxx_compiler", "C++ compiler", {"c++", "g++", "clang++"}));
  machine.components.push_back(probe_program("cmake", "CMake", {"cmake"}));
  machine.components.push_back(probe_program("ninja", "Ninja", {"ninja"}));
  return machine;
}

std::filesystem::path program_path(const std::string& name) {
  const char* value = std::getenv("PATH");
  std::string_view rest = value == nullptr ? "" : value;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    std::filesystem::path path = std::filesystem::path(rest.substr(0, colon)) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0)
      return path;
    rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon + 1);
  }
  return {};
}

SharedLibrary::SharedLibrary(const std::vector<std::string>& names,
                             const std::vector<std::filesystem::path>& folders) {
  const auto open = [this](const std::string& name) {
    handle_ = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle_ != nullptr) return true;
    const char* said = dlerror();
    if (problem_.empty() && said != nullptr) problem_ = said;
    return false;
  };
  for (const std::string& name : names) {
    if (open(name)) return;
  }
  for (const std::filesystem::path& folder : folders) {
    for (const std::string& name : names) {
      std::error_code ignored;
      if (std::filesystem::exists(folder / name, ignored) && open((folder / name).string())) return;
    }
  }
}

std::string SharedLibrary::path() const {
  const link_map* map = nullptr;
  if (handle_ == nullptr || dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return {};
  return map->l_name;
}

std::string SharedLibrary::why_without(const std::string& part) const {
  const std::filesystem::path beside = std::filesystem::path(path()).replace_filename(part);
  if (dlopen(beside.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  std::string why = dlerror();
  return dlopen(part.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr ? std::string() : why;
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

Processor this_processor() {
  Processor processor;
  processor.name = processor_name();
  processor.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  processor.memory_bytes = Bytes{sysconf(_SC_PHYS_PAGES)} * Bytes{sysconf(_SC_PAGE_SIZE)};
  return processor;
}

namespace {

/// What serves programs of that CUDA, as the end of a sentence.
std::string driver_way_out(int cuda_major) {
  const std::string drivers = exec::libraries::drivers_of(cuda_major);
  return drivers.empty() ? "" : ": driver " + drivers;
}

// Verbs that execute on this machine instead of calculating.
constexpr std::array<std::string_view, 2> kExecuting{"run", "measure"};

// Why components or executors are lacking; the first one decides, empty when none is.
class Needs {
 public:
  Needs(const Machine& machine, const BuildInfo& build) : machine_(machine), build_(build) {}

  Needs& verb(const std::string& name, const std::vector<std::string>& verbs) {
    if (std::find(verbs.begin(), verbs.end(), name) == verbs.end()) {
      fail(fmt::format("this build has no verb '{}'", name));
    }
    return *this;
  }
  Needs& executor(const std::string& name) {
    if (name != "host" && name != "mpi" && !build_.has_executor("cuda")) {
      fail(no_cuda_executor(build_.why_no_cuda));
    }
    if (!build_.has_executor(name)) fail(fmt::format("this build has no {} executor", name));
    return *this;
  }
  Needs& component(std::string_view key) {
    const Component& found = machine_.component(key);
    if (!found.present) fail(fmt::format("no {}: {}", found.title, found.detail));
    return *this;
  }
  Needs& gpu() {
    component("cuda_driver").component("gpu").component("cublas_lt");
    // A driver runs programs of its own major CUDA version and of those before.
    const int built_for = build_.cuda_major();
    const int driver_for = machine_.driver_cuda_version / 1000;
    if (driver_for < built_for) {
      fail(fmt::format("the driver is for CUDA {}, while this build needs one for CUDA {}{}",
                       driver_for, built_for, driver_way_out(built_for)));
    }
    return *this;
  }
  Capability as(std::string name) const {
    return {.name = std::move(name), .available = reason_.empty(), .reason = reason_};
  }

 private:
  void fail(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
  }

  const Machine& machine_;
  const BuildInfo& build_;
  std::string reason_;
};

struct Package {
  std::string_view component;
  std::string_view apt;  // packages of Debian, Ubuntu or NVIDIA's apt repository
  std::string_view note;
};

constexpr std::array<Package, 10> kPackages{{
    {"cuda_toolkit", "cuda-toolkit-13-0",
     "to build the CUDA executor; from NVIDIA's apt repository (cuda-keyring)"},
    {"nccl", "libnccl2 libnccl-dev", "to train on several GPUs; from NVIDIA's apt repository"},
    {"cupti", "cuda-cupti-dev-13-0", "to trace kernels; part of every CUDA toolkit"},
    {"cudnn", "cudnn9-cuda-13", "for fused attention; from NVIDIA's apt repository"},
    {"cublas_lt", "libcublas-13-0", "to multiply on GPUs; from NVIDIA's apt repository"},
    {"nvrtc", "cuda-nvrtc-13-0", "cuDNN compiles with it; from NVIDIA's apt repository"},
    {"mpi", "libopenmpi-dev openmpi-bin", "to train on the CPUs of several machines"},
    {"cxx_compiler", "g++", "to build Shardwright"},
    {"cmake", "cmake", "to build Shardwright"},
    {"ninja", "ninja-build", "to build Shardwright faster"},
}};

Advice driver_advice(const Machine& machine) {
  Advice advice{.component = "cuda_driver", .title = machine.component("cuda_driver").title};
  if (machine.nvidia_devices == 0) {
    advice.note = "no NVIDIA GPU is on the PCI bus, so there is nothing for a driver to drive";
  } else if (machine.in_container) {
    advice.command = "docker run --gpus all ...";
    advice.note = "a container gets the driver from its host, when started this way";
  } else if (machine.operating_system.starts_with("Ubuntu")) {
    advice.command = "sudo ubuntu-drivers install";
  } else if (machine.has_apt) {
    advice.command = "sudo apt-get install nvidia-driver";
    advice.note = "from the non-free section";
  } else {
    advice.note = "install NVIDIA's driver with this system's package manager";
  }
  return advice;
}

// What a container's or a process's limits are set by.
void add_limits(const Machine& machine, std::vector<Advice>& all) {
  const auto add = [&](std::string_view key, std::string_view in_container, std::string command) {
    const Component& component = machine.component(key);
    if (component.present) return;
    if (machine.in_container) command = fmt::format("docker run {} ...", in_container);
    all.push_back({component.key, component.title, std::move(command), "for NCCL"});
  };
  add("shared_memory", "--shm-size=1g", "sudo mount -o remount,size=1g /dev/shm");
  add("locked_memory", "--ulimit memlock=-1", "ulimit -l unlimited");
}

}  // namespace

std::string no_cuda_executor(std::string_view why) {
  return fmt::format(
      "this build has no cuda executor, because {}; where CUDA {} or newer is installed, "
      "scripts/quickstart builds one",
      why, exec::libraries::rule_text("cuda_toolkit.oldest", "release"));
}

std::vector<Capability> capabilities(const Machine& machine, const BuildInfo& build,
                                     const std::vector<std::string>& verbs) {
  std::vector<Capability> all;
  for (const std::string& verb : verbs) {
    if (std::find(kExecuting.begin(), kExecuting.end(), verb) == kExecuting.end()) {
      all.push_back({.name = verb, .available = true, .calculates = true});
    }
  }
  const auto needs = [&](const std::string& verb, const std::string& executor) {
    return Needs(machine, build).verb(verb, verbs).executor(executor);
  };
  all.push_back(needs("run", "host").as("run --device host"));
  all.push_back(needs("run", "mpi").component("mpi").as("run --communicator mpi"));
  all.push_back(needs("run", "cuda").gpu().as("run --device cuda"));
  all.push_back(needs("run", "nccl").gpu().component("nccl").as("run --communicator nccl"));
  all.push_back(
      needs("run", "cupti").gpu().component("cupti").as("run --device cuda --trace FILE"));
  all.push_back(needs("measure", "host").as("measure --device host"));
  all.push_back(needs("measure", "cuda").gpu().as("measure --device cuda"));
  return all;
}

void note_what_rules_miss(std::vector<Component>& components) {
  for (Component& component : components) {
    const std::string note = exec::libraries::beyond_rules(component.key, component.version);
    if (note.empty()) continue;
    component.detail += component.detail.empty() ? note : "; " + note;
  }
}

std::vector<Advice> install_advice(const Machine& machine) {
  std::vector<Advice> all;
  if (!machine.has("cuda_driver")) all.push_back(driver_advice(machine));
  for (const Package& package : kPackages) {
    const Component& component = machine.component(package.component);
    if (component.present) continue;
    Advice& advice = all.emplace_back();
    advice.component = component.key;
    advice.title = component.title;
    advice.note = package.note;
    if (machine.has_apt) advice.command = fmt::format("sudo apt-get install {}", package.apt);
  }
  add_limits(machine, all);
  return all;
}

}  // namespace shardwright::cli
