// SPDX-License-Identifier: Apache-2.0

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "cli/machine/machine.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

// 13000 is CUDA 13.0.
std::string cuda_version(int code) {
  return fmt::format("{}.{}", code / 1000, code % 1000 / 10);
}

// Folders that may be the root of a toolkit, most specific first.
std::vector<fs::path> toolkit_roots() {
  std::vector<fs::path> roots;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') roots.emplace_back(value);
  }
  const fs::path nvcc = program_path("nvcc");
  if (!nvcc.empty()) {
    std::error_code failed;
    const fs::path real = fs::canonical(nvcc, failed);
    roots.push_back((failed ? nvcc : real).parent_path().parent_path());
  }
  roots.insert(roots.end(), {"/usr/local/cuda", "/opt/cuda", "/usr"});
  return roots;
}

// CUDA_VERSION of the toolkit's cuda.h; none when `root` holds no toolkit.
std::optional<int> toolkit_version(const fs::path& root) {
  constexpr std::string_view kMacro = "#define CUDA_VERSION ";
  std::ifstream header(root / "include/cuda.h");
  for (std::string line; std::getline(header, line);) {
    if (!line.starts_with(kMacro)) continue;
    std::string_view number = std::string_view(line).substr(kMacro.size());
    number = number.substr(0, number.find_first_not_of("0123456789"));
    const std::optional<std::int64_t> version = parse_int64(number);
    if (version && *version < 1000000) return static_cast<int>(*version);
  }
  return std::nullopt;
}

std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders;
  for (const fs::path& root : toolkit_roots()) {
    for (const char* folder : {"lib64", "lib", "extras/CUPTI/lib64"})
      folders.push_back(root / folder);
  }
  return folders;
}

// The driver API that is needed, with the types of cuda.h: CUresult and CUdevice are int.
class Driver {
 public:
  Driver() : library_({"libcuda.so.1"}) {
    if (!library_.opened()) {
      problem_ = library_.problem();
      return;
    }
    // The toolkit ships an empty libcuda to link against; it answers everything with this code.
    constexpr int kStubLibrary = 34;
    auto* get_version = library_.function<int(int*)>("cuDriverGetVersion");
    const int status = get_version == nullptr ? -1 : get_version(&cuda_version_);
    if (status == kStubLibrary) {
      problem_ = library_.path() + " is the toolkit's stub for linking, not a driver";
    } else if (status != 0) {
      problem_ = fmt::format("{} does not tell its version (code {})", library_.path(), status);
    }
  }

  /// The newest CUDA that it supports, 13000 is 13.0; 0 without a driver.
  int cuda_version_code() const { return problem_.empty() ? cuda_version_ : 0; }

  Component describe() const {
    Component component{.key = "cuda_driver", .title = "CUDA driver"};
    component.present = problem_.empty();
    component.detail = problem_.empty() ? library_.path() : problem_;
    if (component.present) component.version = "for CUDA " + cuda_version(cuda_version_);
    return component;
  }

  /// None where there are fewer than two GPUs, or the driver does not say.
  std::optional<bool> peer_access(int count) const {
    auto* can_access = library_.function<int(int*, int, int)>("cuDeviceCanAccessPeer");
    if (count < 2 || can_access == nullptr) return {};
    for (int device = 0; device < count; ++device) {
      for (int peer = 0; peer < count; ++peer) {
        int can = 0;
        if (device != peer && (can_access(&can, device, peer) != 0 || can == 0)) return false;
      }
    }
    return true;
  }

  /// Fills `gpus`; the component says how many there are or why there are none.
  Component list_gpus(std::vector<InstalledGpu>& gpus) const {
    Component component{.key = "gpu", .title = "GPU"};
    if (!problem_.empty()) {
      component.detail = "no driver to ask";
      return component;
    }
    auto* initialize = library_.function<int(unsigned)>("cuInit");
    auto* get_count = library_.function<int(int*)>("cuDeviceGetCount");
    if (initialize == nullptr || get_count == nullptr) {
      component.detail = "the driver library lacks cuInit or cuDeviceGetCount";
      return component;
    }
    int count = 0;
    int status = initialize(0);
    if (status == 0) status = get_count(&count);
    if (status != 0) {
      component.detail = fmt::format("the driver says: {} (code {}){}", error_text(status), status,
                                     exec::libraries::way_out_of_status(status));
      return component;
    }
    for (int index = 0; index < count; ++index) gpus.push_back(describe_gpu(index));
    component.present = count > 0;
    component.detail =
        count > 0 ? fmt::format("{} x {}", count, gpus.front().name) : "the driver lists no device";
    return component;
  }

 private:
  std::string error_text(int status) const {
    const char* text = nullptr;
    auto* describe = library_.function<int(int, const char**)>("cuGetErrorString");
    if (describe == nullptr || describe(status, &text) != 0 || text == nullptr)
      return "unknown error";
    return text;
  }

  InstalledGpu describe_gpu(int device) const {
    // CUdevice_attribute of cuda.h.
    constexpr int kMultiprocessors = 16;
    constexpr int kCapabilityMajor = 75;
    constexpr int kCapabilityMinor = 76;
    InstalledGpu gpu;
    std::array<char, 256> name{};
    auto* get_name = library_.function<int(char*, int, int)>("cuDeviceGetName");
    if (get_name != nullptr &&
        get_name(name.data(), static_cast<int>(name.size()) - 1, device) == 0) {
      gpu.name = name.data();
    }
    std::size_t bytes = 0;
    auto* total_memory = library_.function<int(std::size_t*, int)>("cuDeviceTotalMem_v2");
    if (total_memory != nullptr && total_memory(&bytes, device) == 0) {
      gpu.memory_bytes = static_cast<Bytes>(bytes);
    }
    const auto attribute = [&](int which) {
      int value = 0;
      auto* get = library_.function<int(int*, int, int)>("cuDeviceGetAttribute");
      return get != nullptr && get(&value, which, device) == 0 ? value : 0;
    };
    gpu.multiprocessors = attribute(kMultiprocessors);
    gpu.compute_capability =
        fmt::format("{}.{}", attribute(kCapabilityMajor), attribute(kCapabilityMinor));
    return gpu;
  }

  SharedLibrary library_;
  std::string problem_;  // why there is no usable driver; empty when there is
  int cuda_version_ = 0;
};

Component probe_toolkit() {
  Component component{.key = "cuda_toolkit", .title = "CUDA toolkit"};
  for (const fs::path& root : toolkit_roots()) {
    const std::optional<int> version = toolkit_version(root);
    std::error_code ignored;
    if (!version || !fs::exists(root / "bin/nvcc", ignored)) continue;
    component.present = true;
    component.version = cuda_version(*version);
    component.detail = root.string();
    return component;
  }
  component.detail = "no nvcc on the PATH, under CUDA_HOME or in the usual folders";
  return component;
}

// A library of which only a function that returns its version is called.
Component probe_library(std::string key, std::string title, const std::vector<std::string>& names,
                        const std::vector<fs::path>& folders,
                        const std::function<std::string(const SharedLibrary&)>& version,
                        const std::function<std::string(const SharedLibrary&)>& lack = {}) {
  const SharedLibrary library(names, folders);
  Component component{.key = std::move(key), .title = std::move(title)};
  const std::string problem = !library.opened() ? library.problem()
                              : lack            ? lack(library)
                                                : std::string();
  component.present = problem.empty();
  component.version = component.present ? version(library) : std::string{};
  component.detail = component.present ? library.path() : problem;
  return component;
}

std::string nccl_version(const SharedLibrary& library) {
  int code = 0;
  auto* get = library.function<int(int*)>("ncclGetVersion");
  if (get == nullptr || get(&code) != 0) return {};
  // 2.8 and before: 2804 is 2.8.4; since 2.9: 22809 is 2.28.9.
  const int scale = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / scale, code % scale / 100, code % 100);
}

std::string cupti_version(const SharedLibrary& library) {
  std::uint32_t code = 0;
  auto* get = library.function<int(std::uint32_t*)>("cuptiGetVersion");
  return get != nullptr && get(&code) == 0 ? fmt::format("API {}", code) : std::string{};
}

// 130100 is 13.1.0.
std::string cublas_version(const SharedLibrary& library) {
  auto* get = library.function<std::size_t()>("cublasLtGetVersion");
  if (get == nullptr) return {};
  const std::size_t code = get();
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::string nvrtc_version(const SharedLibrary& library) {
  int major = 0, minor = 0;
  auto* get = library.function<int(int*, int*)>("nvrtcVersion");
  return get != nullptr && get(&major, &minor) == 0 ? fmt::format("{}.{}", major, minor)
                                                    : std::string{};
}

// It compiles nothing without them.
std::string nvrtc_lack(const SharedLibrary& library) {
  const std::string version = nvrtc_version(library);
  return version.empty() ? version : library.why_without("libnvrtc-builtins.so." + version);
}

// What cuDNN 9 cannot load of its parts: without the first it ends the process that calls it,
// without the second it has no engine for attention.
std::string cudnn_lack(const SharedLibrary& library) {
  const std::string file = fs::path(library.path()).filename().string();
  if (!file.starts_with("libcudnn.so.9")) return {};
  std::string why = library.why_without("libcudnn_graph.so.9");
  return why.empty() ? library.why_without("libcudnn_engines_runtime_compiled.so.9") : why;
}

std::string cudnn_version(const SharedLibrary& library) {
  auto* get = library.function<std::size_t()>("cudnnGetVersion");
  if (get == nullptr) return {};
  const std::size_t code = get();
  // 8 and before: 8907 is 8.9.7; since 9: 91900 is 9.19.0.
  const std::size_t scale = code < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", code / scale, code % scale / 100, code % 100);
}

}  // namespace

void probe_cuda(Machine& machine) {
  const Driver driver;
  machine.driver_cuda_version = driver.cuda_version_code();
  machine.components.push_back(driver.describe());
  machine.components.push_back(driver.list_gpus(machine.gpus));
  machine.peer_access = driver.peer_access(static_cast<int>(machine.gpus.size()));
  machine.components.push_back(probe_toolkit());
  const std::vector<fs::path> folders = library_folders();
  // By the names of this build's CUDA: other major versions do not serve it.
  const auto names = [](const std::string& name) {
#ifdef SHARDWRIGHT_CUDA_MAJOR
    return std::vector<std::string>{fmt::format("{}.so.{}", name, SHARDWRIGHT_CUDA_MAJOR)};
#else
    return std::vector<std::string>{name + ".so.13", name + ".so.12", name + ".so"};
#endif
  };
  machine.components.push_back(
      probe_library("cublas_lt", "cuBLASLt", names("libcublasLt"), folders, cublas_version));
  machine.components.push_back(
      probe_library("nccl", "NCCL", {"libnccl.so.2", "libnccl.so"}, folders, nccl_version));
  machine.components.push_back(probe_library("cupti", "CUPTI",
                                             {"libcupti.so.13", "libcupti.so.12", "libcupti.so"},
                                             folders, cupti_version));
  machine.components.push_back(probe_library("cudnn", "cuDNN",
                                             {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"},
                                             folders, cudnn_version, cudnn_lack));
  // Where exec/libraries/loaded_library.cc finds it for cuDNN.
  machine.components.push_back(probe_library("nvrtc", "NVRTC (for cuDNN)", names("libnvrtc"),
                                             {SHARDWRIGHT_NVRTC_FOLDER}, nvrtc_version,
                                             nvrtc_lack));
}

}  // namespace shardwright::cli
